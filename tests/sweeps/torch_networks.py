"""The networks of `torch_imports`: those of timm and torchvision, and where the others are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

ROWS = 3
LARGE = False  # whether networks of hundreds of megabytes take part


@dataclass
class Example:
    """A module and its example arguments; `labels` where it returns its loss itself."""

    module: Any
    args: Any = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    labels: Any = None
    rows: int = ROWS


Make = Callable[[], Example]


def define_operators() -> None:
    """Declare two operators of torchvision where its library does not load beside this torch."""
    try:
        import torchvision  # noqa: F401
    except (ImportError, RuntimeError):
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            if not hasattr(torch.ops.torchvision, name):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        LIBRARIES.append(library)


LIBRARIES: list[Any] = []  # an operator exists as long as the library that declared it


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
botnet26t_256 halonet26t lambda_resnet26t cpubone_nano csatv2 efficientformerv2_s0 efficientvim_m1
efficientvit_m0 fasternet_t0 gcvit_xxtiny hardcorenas_a sam2_hiera_tiny iformer_t
inception_resnet_v2 inception_v4 lcnetv2_small lowformer_b0 mvitv2_tiny naflexvit_base_patch16_gap
nextvit_small resnest14d rexnet_100 legacy_seresnet18 shvit_s1 swiftformer_xs swinv2_cr_tiny_224
tresnet_m vgg11_bn vit_tiny_r_s16_p8_224 vit_relpos_small_patch16_224 samvit_base_patch16_224
vitamin_small_224 legacy_xception xception41 qwen3_vit_88m
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
        skipped = ("quantized_",) if LARGE else ("quantized_", *HUGE)
        if not name.startswith(skipped) and (has_operators or not needs_operators):
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


def transformers_networks() -> Iterator[tuple[str, Make]]:
    from tests.sweeps import transformers_networks as library

    yield from library.networks()


def own_networks() -> Iterator[tuple[str, Make]]:
    from tests.sweeps import torch_own_networks

    yield from torch_own_networks.networks()


def more_networks() -> Iterator[tuple[str, Make]]:
    from tests.sweeps import torch_more_networks

    yield from torch_more_networks.networks()


FAMILIES: dict[str, Callable[[], Iterator[tuple[str, Make]]]] = {
    "own": own_networks,
    "more": more_networks,
    "transformers": transformers_networks,
    "timm": timm_networks,
    "torchvision": torchvision_networks,
}
__all__ = ["FAMILIES", "Example", "nn"]
