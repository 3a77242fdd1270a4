"""The networks of transformers for `torch_imports`: small configurations with random weights."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tests.sweeps.torch_networks import ROWS, Example, Make

TEXT = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 37, "max_position_embeddings": 64,
}  # fmt: skip
SINGLE = {**TEXT, "problem_type": "single_label_classification"}  # else it looks at the labels
LLAMA = {**TEXT, "num_key_value_heads": 2, "use_cache": False, "pad_token_id": 0}
SEQ2SEQ = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2,
    "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 37,
    "decoder_ffn_dim": 37, "max_position_embeddings": 64, "use_cache": False,
}  # fmt: skip
IMAGE = {
    "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 37,
}  # fmt: skip
NO_LAYER_DROP = {"encoder_layerdrop": 0, "decoder_layerdrop": 0}
SPEECH = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37,
    "vocab_size": 32, "conv_dim": (32, 32, 32), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "layerdrop": 0.0,
}  # fmt: skip
TEXTS = {
    "Bert": TEXT, "Roberta": TEXT, "XLMRoberta": TEXT, "Camembert": TEXT, "Electra": TEXT,
    "MPNet": TEXT, "Ernie": TEXT, "LayoutLM": TEXT, "ConvBert": TEXT, "SqueezeBert":
    {**TEXT, "embedding_size": 32, "intermediate_size": 36}, "DebertaV2": SINGLE,
    "Deberta": SINGLE, "RoFormer": TEXT,
    "MegatronBert": TEXT, "FNet": TEXT,
    "Albert": {**TEXT, "embedding_size": 16},
    "DistilBert": {"vocab_size": 99, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37},
    "MobileBert": {**TEXT, "intra_bottleneck_size": 16, "embedding_size": 16},
}  # fmt: skip
CAUSAL = {
    "GPT2LMHeadModel": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4,
                        "use_cache": False},
    "GPTNeoForCausalLM": {"vocab_size": 99, "hidden_size": 32, "num_layers": 2, "num_heads": 4,
                          "attention_types": [[["global", "local"], 1]], "use_cache": False},
    "GPTNeoXForCausalLM": {**TEXT, "use_cache": False},
    "GPTJForCausalLM": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4,
                        "use_cache": False},
    "OPTForCausalLM": {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "ffn_dim": 37,
                       "num_attention_heads": 4, "max_position_embeddings": 64,
                       "word_embed_proj_dim": 32, "use_cache": False},
    "BloomForCausalLM": {"vocab_size": 99, "hidden_size": 32, "n_layer": 2, "n_head": 4,
                         "use_cache": False},
    "LlamaForCausalLM": LLAMA, "MistralForCausalLM": LLAMA, "Qwen2ForCausalLM": LLAMA,
    "Qwen3ForCausalLM": {**LLAMA, "head_dim": 8}, "GemmaForCausalLM": {**LLAMA, "head_dim": 8},
    "Gemma2ForCausalLM": {**LLAMA, "head_dim": 8}, "PhiForCausalLM": LLAMA,
    "Phi3ForCausalLM": LLAMA, "StableLmForCausalLM": LLAMA, "OlmoForCausalLM": LLAMA,
    "Starcoder2ForCausalLM": LLAMA, "GraniteForCausalLM": LLAMA, "CohereForCausalLM": LLAMA,
    "FalconForCausalLM": {**TEXT, "use_cache": False},
    "MptForCausalLM": {"vocab_size": 99, "d_model": 32, "n_layers": 2, "n_heads": 4,
                       "max_seq_len": 64, "use_cache": False},
    "MambaForCausalLM": {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2,
                         "state_size": 4, "use_cache": False},
}  # fmt: skip
PAIRS = {
    "BartForConditionalGeneration": SEQ2SEQ, "MBartForConditionalGeneration": SEQ2SEQ,
    "PegasusForConditionalGeneration": SEQ2SEQ, "MarianMTModel": {**SEQ2SEQ, "pad_token_id": 0,
    "decoder_start_token_id": 0}, "BlenderbotForConditionalGeneration": SEQ2SEQ,
    "T5ForConditionalGeneration": {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37,
        "num_layers": 2, "num_heads": 4, "use_cache": False, "decoder_start_token_id": 0},
    "MT5ForConditionalGeneration": {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 37,
        "num_layers": 2, "num_heads": 4, "use_cache": False, "decoder_start_token_id": 0},
}  # fmt: skip
IMAGES = {
    "ViTForImageClassification": IMAGE, "DeiTForImageClassification": IMAGE,
    "BeitForImageClassification": IMAGE, "Data2VecVisionForImageClassification": IMAGE,
    "ViTMSNForImageClassification": IMAGE, "Dinov2ForImageClassification": IMAGE,
    "ConvNextForImageClassification": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "ConvNextV2ForImageClassification": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "ResNetForImageClassification": {"embedding_size": 8, "hidden_sizes": [8, 16],
                                     "depths": [1, 1]},
    "RegNetForImageClassification": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1],
                                     "groups_width": 4},
    "SwinForImageClassification": {"image_size": 32, "patch_size": 4, "embed_dim": 16,
                                   "depths": [1, 1], "num_heads": [2, 2], "window_size": 4},
    "PoolFormerForImageClassification": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1]},
    "MobileNetV2ForImageClassification": {"depth_multiplier": 0.25, "image_size": 32},
    "SegformerForImageClassification": {"hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
        "num_attention_heads": [1, 1, 2, 2]},
}  # fmt: skip
SPEECHES = ("Wav2Vec2", "Hubert", "WavLM", "SEW", "UniSpeech")

# Further language models: (class, settings, whether they return a loss for `labels`).
ENCODERS = {
    "ModernBert": {**TEXT, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
                   "cls_token_id": 1, "sep_token_id": 2},
    "Esm": {**TEXT, "pad_token_id": 0, "mask_token_id": 1, "position_embedding_type": "rotary"},
    "IBert": {**TEXT, "quant_mode": False}, "Lilt": {**TEXT, "hidden_size": 48},
    "RemBert": {**TEXT, "input_embedding_size": 16, "output_embedding_size": 16},
    "XLMRobertaXL": TEXT, "Xmod": {**TEXT, "default_language": "en_XX"}, "BigBird":
    {**TEXT, "attention_type": "original_full"}, "Yoso": {**TEXT, "use_expectation": True},
    "RobertaPreLayerNorm": TEXT, "Data2VecText": TEXT, "NomicBert": TEXT,
    "XLNet": {"vocab_size": 99, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 37},
    "XLM": {"vocab_size": 99, "emb_dim": 32, "n_layers": 2, "n_heads": 4},
    "Flaubert": {"vocab_size": 99, "emb_dim": 32, "n_layers": 2, "n_heads": 4},
    "Funnel": {"vocab_size": 99, "d_model": 32, "block_sizes": [1, 1], "n_head": 4, "d_head": 8,
               "d_inner": 37, "num_decoder_layers": 1},
    "Longformer": {**TEXT, "attention_window": 4},
}  # fmt: skip
HEAD8 = {**LLAMA, "head_dim": 8}
DECODERS = {
    "MixtralForCausalLM": {**LLAMA, "intermediate_size": 32, "num_local_experts": 2,
                           "num_experts_per_tok": 1},
    "Qwen2MoeForCausalLM": {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    "Olmo2ForCausalLM": LLAMA, "Olmo3ForCausalLM": LLAMA, "Cohere2ForCausalLM": LLAMA,
    "Gemma3ForCausalLM": HEAD8, "NemotronForCausalLM": LLAMA, "PersimmonForCausalLM": LLAMA,
    "HeliumForCausalLM": HEAD8, "GlmForCausalLM": HEAD8, "Glm4ForCausalLM": HEAD8,
    "SmolLM3ForCausalLM": LLAMA, "Exaone4ForCausalLM": LLAMA, "Ministral3ForCausalLM": HEAD8,
    "ArceeForCausalLM": LLAMA, "SeedOssForCausalLM": HEAD8, "ApertusForCausalLM": LLAMA,
    "DiffLlamaForCausalLM": LLAMA, "BitNetForCausalLM": LLAMA, "Ernie4_5ForCausalLM": LLAMA,
    "HunYuanDenseV1ForCausalLM": HEAD8, "Lfm2ForCausalLM": LLAMA, "JetMoeForCausalLM": LLAMA,
    "XGLMForCausalLM": {"vocab_size": 99, "d_model": 32, "num_layers": 2, "attention_heads": 4,
                        "ffn_dim": 37, "use_cache": False},
    "BioGptForCausalLM": {**TEXT, "use_cache": False},
    "CodeGenForCausalLM": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4,
                           "rotary_dim": 4, "use_cache": False},
    "GPTBigCodeForCausalLM": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4,
                              "use_cache": False},
    "OpenAIGPTLMHeadModel": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4},
    "CTRLLMHeadModel": {"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "dff": 37,
                        "use_cache": False},
    "RwkvForCausalLM": {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2,
                        "attention_hidden_size": 32, "use_cache": False},
    "Mamba2ForCausalLM": {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2,
        "state_size": 8, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 4,
        "use_cache": False},
    "FalconMambaForCausalLM": {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2,
                               "state_size": 4, "use_cache": False},
    "RecurrentGemmaForCausalLM": {**LLAMA, "lru_width": 32, "attention_window_size": 8},
}  # fmt: skip
T5 = PAIRS["T5ForConditionalGeneration"]
SEQUENCES = {
    "BlenderbotSmallForConditionalGeneration": SEQ2SEQ, "PLBartForConditionalGeneration": SEQ2SEQ,
    "M2M100ForConditionalGeneration": {**SEQ2SEQ, **NO_LAYER_DROP},
    "BigBirdPegasusForConditionalGeneration":
    {**SEQ2SEQ, "attention_type": "original_full"}, "MvpForConditionalGeneration": SEQ2SEQ,
    "UMT5ForConditionalGeneration": T5, "LongT5ForConditionalGeneration":
    {**T5, "local_radius": 4}, "PegasusXForConditionalGeneration": {**SEQ2SEQ, "block_size": 8},
    "NllbMoeForConditionalGeneration": {**SEQ2SEQ, "num_experts": 2, "encoder_sparse_step": 2,
                                        "decoder_sparse_step": 2},
}  # fmt: skip
PICTURES = {
    "Swinv2ForImageClassification": IMAGES["SwinForImageClassification"],
    "MobileViTForImageClassification": {"image_size": 32, "hidden_sizes": [16, 16, 16],
        "neck_hidden_sizes": [8, 8, 8, 8, 8, 8, 32], "num_attention_heads": 4},
    "MobileNetV1ForImageClassification": {"depth_multiplier": 0.25, "image_size": 32},
    "EfficientNetForImageClassification": {"width_coefficient": 0.25, "depth_coefficient": 0.25,
                                           "image_size": 32, "hidden_dim": 1280 // 4},
    "FocalNetForImageClassification": {"image_size": 32, "embed_dim": 8, "depths": [1, 1],
        "hidden_sizes": [8, 16], "focal_levels": [1, 1], "focal_windows": [3, 3]},
    "PvtForImageClassification": {"image_size": 64, "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]},
    "PvtV2ForImageClassification": {"image_size": 32, "hidden_sizes": [8, 8, 16, 16],
        "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2]},
    "BitForImageClassification": {"embedding_size": 32, "hidden_sizes": [32, 64],
                                  "depths": [1, 1], "num_groups": 8},
    "LevitForImageClassification": {"image_size": 64, "hidden_sizes": [16, 32, 48],
        "num_attention_heads": [1, 2, 3], "depths": [1, 1, 1], "key_dim": [8, 8, 8]},
    "SwiftFormerForImageClassification": {"image_size": 32, "embed_dims": [8, 8, 16, 16],
                                          "depths": [1, 1, 1, 1]},
    "Dinov2WithRegistersForImageClassification": IMAGE, "IJepaForImageClassification": IMAGE,
    "HieraForImageClassification": {"image_size": [64, 64], "embed_dim": 8, "depths": [1, 1],
        "num_heads": [1, 2], "num_query_pool": 1, "query_stride": [2, 2]},
    "SiglipForImageClassification": {"vision_config": IMAGE, "text_config": TEXT},
    "CLIPForImageClassification": {"vision_config": IMAGE, "text_config": TEXT},
}  # fmt: skip
SOUNDS = ("Wav2Vec2Conformer", "Data2VecAudio", "UniSpeechSat", "SEWD")


def further_networks() -> Iterator[tuple[str, Make]]:
    """Families beyond the usual ones."""
    for name, settings in ENCODERS.items():
        yield name, lambda n=name, s=settings: _text(f"{n}ForSequenceClassification", s)
    for name, settings in DECODERS.items():
        yield name, lambda n=name, s=settings: _causal(n, s)
    for name, settings in SEQUENCES.items():
        yield name, lambda n=name, s=settings: _pair(n, s)
    for name, settings in PICTURES.items():
        yield name, lambda n=name, s=settings: _image(n, s)
    for name in SOUNDS:
        yield name, lambda n=name: _speech(f"{n}ForSequenceClassification")


def _ids() -> Any:
    return torch.randint(3, 99, (ROWS, 9))


def networks() -> Iterator[tuple[str, Make]]:
    for name, settings in TEXTS.items():
        yield name, lambda n=name, s=settings: _text(f"{n}ForSequenceClassification", s)
    for name, settings in CAUSAL.items():
        yield name, lambda n=name, s=settings: _causal(n, s)
    for name, settings in PAIRS.items():
        yield name, lambda n=name, s=settings: _pair(n, s)
    for name, settings in IMAGES.items():
        yield name, lambda n=name, s=settings: _image(n, s)
    for name in SPEECHES:
        yield name, lambda n=name: _speech(f"{n}ForSequenceClassification")
    yield "CLIPModel", _clip
    yield "WhisperForConditionalGeneration", _whisper
    yield from further_networks()


def _built(name: str, settings: dict[str, Any], **more: Any) -> Any:
    import transformers

    cls = getattr(transformers, name)
    return cls(cls.config_class(**{**settings, **more}))


def _text(name: str, settings: dict[str, Any]) -> Example:
    module = _built(name, settings, num_labels=3)
    kwargs = {"input_ids": _ids()}
    if name != "FNetForSequenceClassification":
        kwargs["attention_mask"] = torch.ones(ROWS, 9, dtype=torch.int64)
        kwargs["attention_mask"][0, 6:] = 0
    return Example(module, (), kwargs, torch.tensor([0, 1, 2]))


def _causal(name: str, settings: dict[str, Any]) -> Example:
    ids = _ids()
    return Example(_built(name, settings), (), {"input_ids": ids}, ids)


def _pair(name: str, settings: dict[str, Any]) -> Example:
    return Example(_built(name, settings), (), {"input_ids": _ids()}, _ids()[:, :5].contiguous())


def _image(name: str, settings: dict[str, Any]) -> Example:
    size = settings.get("image_size", 32)
    size = size[0] if isinstance(size, list) else size
    pixels = torch.randn(ROWS, 3, size, size)
    module = _built(name, settings, num_labels=3)
    return Example(module, (), {"pixel_values": pixels}, torch.tensor([0, 1, 2]))


def _speech(name: str) -> Example:
    module = _built(name, SPEECH, num_labels=3)
    return Example(module, (), {"input_values": torch.randn(ROWS, 1000)}, torch.tensor([0, 1, 2]))


def _clip() -> Example:
    import transformers

    text = {**TEXT, "eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0, "projection_dim": 16}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**IMAGE, "projection_dim": 16}, projection_dim=16
    )
    kwargs = {"input_ids": _ids(), "pixel_values": torch.randn(ROWS, 3, 32, 32)}
    return Example(transformers.CLIPModel(config), (), {**kwargs, "return_dict": True})


def _whisper() -> Example:
    settings = {**SEQ2SEQ, "num_mel_bins": 16, "max_source_positions": 20,
                "max_target_positions": 30, "pad_token_id": 0, "bos_token_id": 1,
                "eos_token_id": 2, "decoder_start_token_id": 1}  # fmt: skip
    module = _built("WhisperForConditionalGeneration", settings)
    features = torch.randn(ROWS, 16, 40)
    return Example(module, (), {"input_features": features}, _ids()[:, :5].contiguous())
