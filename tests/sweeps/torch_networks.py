"""The networks of `torch_imports`: small configurations of libraries, and networks of our own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

ROWS = 3


@dataclass
class Example:
    """A module and its example arguments; `labels` where it returns its loss itself."""

    module: Any
    args: Any = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    labels: Any = None
    rows: int = ROWS


Make = Callable[[], Example]

# -- transformers -----------------------------------------------------------------------

TEXT = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 37, "max_position_embeddings": 64,
}  # fmt: skip
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
SPEECH = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 37,
    "vocab_size": 32, "conv_dim": (32, 32, 32), "conv_stride": (5, 2, 2), "conv_kernel": (10, 3, 3),
    "num_feat_extract_layers": 3, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2, "mask_time_prob": 0.0, "layerdrop": 0.0,
}  # fmt: skip
TEXTS = {
    "Bert": TEXT, "Roberta": TEXT, "XLMRoberta": TEXT, "Camembert": TEXT, "Electra": TEXT,
    "MPNet": TEXT, "Ernie": TEXT, "LayoutLM": TEXT, "ConvBert": TEXT, "SqueezeBert":
    {**TEXT, "embedding_size": 32, "intermediate_size": 36}, "DebertaV2": TEXT,
    "Deberta": TEXT, "RoFormer": TEXT,
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


def _ids() -> Any:
    return torch.randint(3, 99, (ROWS, 9))


def transformers_networks() -> Iterator[tuple[str, Make]]:
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


def define_operators() -> None:
    """Declare two operators of torchvision, whose library does not load beside every torch."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, name):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    LIBRARIES.append(library)


LIBRARIES: list[Any] = []  # an operator exists as long as the library that declared it


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
    return Example(_built(name, settings), (), {"input_ids": _ids()}, _ids()[:, :5])


def _image(name: str, settings: dict[str, Any]) -> Example:
    pixels = torch.randn(ROWS, 3, 32, 32)
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
    return Example(module, (), {"input_features": features}, _ids()[:, :5])


# -- timm and torchvision ---------------------------------------------------------------

TIMM = """
resnet18 resnetv2_50 resnext50_32x4d seresnet18 skresnet18 ecaresnet26t res2net50_26w_4s
wide_resnet50_2 regnetx_002 regnety_002 efficientnet_b0 efficientnet_lite0 mobilenetv2_050
mobilenetv3_small_050 mobilenetv4_conv_small_050 mnasnet_small fbnetc_100 ghostnet_050
repghostnet_050 tinynet_e lcnet_050 repvgg_a0 mobileone_s0 dla34 densenet121 vovnet39a
hrnet_w18_small dpn48b selecsls42 cspresnet50 vit_tiny_patch16_224 deit_tiny_patch16_224
deit3_small_patch16_224 cait_xxs24_224 xcit_nano_12_p16_224 beit_base_patch16_224
crossvit_tiny_240 coat_tiny pit_ti_224 levit_128s visformer_tiny convit_tiny tnt_s_patch16_224
swin_tiny_patch4_window7_224 swinv2_tiny_window8_256 poolformer_s12 convnext_atto convnextv2_atto
convmixer_768_32 mixer_s32_224 gmlp_ti16_224 resmlp_12_224 edgenext_xx_small efficientformer_l1
mobilevit_xxs mobilevitv2_050 nest_tiny twins_pcpvt_small maxvit_tiny_rw_224 coatnet_nano_rw_224
focalnet_tiny_srf davit_tiny volo_d1_224 sequencer2d_s inception_v3 nf_resnet26
eva02_tiny_patch14_224 fastvit_t8 rdnet_tiny starnet_s1 hiera_tiny_224 pvt_v2_b0 tiny_vit_5m_224
mambaout_femto caformer_s18 inception_next_atto hgnetv2_b0 efficientvit_b0 repvit_m0_9 test_vit
"""
# The first of these settings that a family takes makes its networks small.
SHORT = (1, 1, 1, 1)
SMALLER: tuple[dict[str, Any], ...] = (
    {"depth": 2, "img_size": 64}, {"depth": 2, "img_size": 56}, {"depth": 2}, {"layers": SHORT},
    {"depths": SHORT, "img_size": 64}, {"depths": SHORT}, {"depths": (1, 1, 1)},
    {"num_blocks": 2, "img_size": 64}, {"block_config": SHORT}, {"stages": SHORT},
    {"serial_depths": SHORT, "parallel_depth": 1}, {"depth": (1, 1, 1)}, {},
)  # fmt: skip


def timm_networks() -> Iterator[tuple[str, Make]]:
    for name in TIMM.split():
        yield name, lambda n=name: _timm(n)


def _timm(name: str) -> Example:
    import timm

    usual = timm.get_pretrained_cfg(name)
    sizes = [64, usual.input_size[-1] if usual is not None else 224]
    for settings in SMALLER:
        for size in [settings["img_size"]] if "img_size" in settings else sizes:
            try:
                module = timm.create_model(name, num_classes=5, pretrained=False, **settings)
                x = torch.randn(2, 3, size, size)
                with torch.no_grad():
                    module.eval()(x)
            except Exception:  # a setting or a size that this family does not take
                continue
            return Example(module, x, rows=2)
    raise ValueError(f"no size suits {name}")


def torchvision_networks() -> Iterator[tuple[str, Make]]:
    import torchvision

    has_operators = torchvision.extension._has_ops()
    for name in torchvision.models.list_models():
        needs_operators = any(word in name for word in DETECTION)
        if not name.startswith(("quantized_", *HUGE)) and (has_operators or not needs_operators):
            yield name, lambda n=name: _torchvision(n)


DETECTION = ("rcnn", "retinanet", "ssd", "fcos", "keypoint")
HUGE = ("vgg", "alexnet", "regnet_y_128gf", "vit_h", "vit_l", "regnet_y_32gf", "regnet_x_32gf",
        "convnext_large", "efficientnet_v2_l", "wide_resnet101", "resnext101_64x4d")  # fmt: skip


def _torchvision(name: str) -> Example:
    import torchvision

    settings: dict[str, Any] = {"weights": None}
    if any(word in name for word in DETECTION):
        module = torchvision.models.get_model(name, weights_backbone=None, **settings)
        return Example(module, ([torch.randn(3, 64, 64)],), rows=1)
    if "deeplab" in name or "fcn" in name or "lraspp" in name:
        module = torchvision.models.get_model(name, weights_backbone=None, **settings)
        return Example(module, torch.randn(2, 3, 64, 64), rows=2)
    if name.startswith("raft"):
        pair = (torch.randn(1, 3, 128, 128), torch.randn(1, 3, 128, 128))
        return Example(torchvision.models.get_model(name, **settings), pair, rows=1)
    module = torchvision.models.get_model(name, num_classes=5, **settings)
    if name.startswith(("r3d", "mc3", "r2plus1d", "s3d", "mvit", "swin3d")):
        size = 224 if name.startswith(("mvit", "s3d")) else 64
        return Example(module, torch.randn(1, 3, 16, size, size), rows=1)
    size = 224 if name.startswith(("vit", "maxvit")) else 299 if "inception" in name else 64
    return Example(module, torch.randn(2, 3, size, size), rows=2)


def own_networks() -> Iterator[tuple[str, Make]]:
    from tests.sweeps import torch_own_networks

    yield from torch_own_networks.networks()


FAMILIES: dict[str, Callable[[], Iterator[tuple[str, Make]]]] = {
    "own": own_networks,
    "transformers": transformers_networks,
    "timm": timm_networks,
    "torchvision": torchvision_networks,
}
__all__ = ["FAMILIES", "Example", "nn"]
