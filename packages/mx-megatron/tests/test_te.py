"""The layout of Transformer Engine's MXFP8 weights, without Transformer Engine or a GPU."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch

import mx_quant
from mx_megatron import te
from mx_megatron.recipe import Recipe


def padded(rows: int = 96, columns: int = 160) -> tuple[mx_quant.MXTensor, Any]:
    weight = torch.randn(rows, columns, generator=torch.Generator().manual_seed(0))
    canonical = mx_quant.quantize(weight.to(torch.bfloat16), grid=mx_quant.MXFP8)
    scales = torch.full((128, 8), 0xAB, dtype=torch.uint8)
    scales[:rows, : columns // 32] = canonical.scales
    return canonical, SimpleNamespace(
        _rowwise_data=canonical.element_bytes,
        _rowwise_scale_inv=scales,
        _with_gemm_swizzled_scales=False,
    )


def test_rowwise_bytes_are_read_with_the_padding_cropped() -> None:
    canonical, weight = padded()
    assert mx_quant.digest(te.read_rowwise(weight, name="w")) == mx_quant.digest(canonical)


def test_swizzled_scales_are_refused_by_name() -> None:
    _, weight = padded()
    weight._with_gemm_swizzled_scales = True
    with pytest.raises(ValueError, match="decoder.w: scales are swizzled"):
        te.read_rowwise(weight, name="decoder.w")


def test_a_missing_rowwise_copy_is_refused_by_name() -> None:
    _, weight = padded()
    weight._rowwise_data = None
    with pytest.raises(ValueError, match="w: no rowwise copy"):
        te.read_rowwise(weight, name="w")


def test_too_few_scales_are_refused_with_both_shapes() -> None:
    _, weight = padded()
    weight._rowwise_scale_inv = weight._rowwise_scale_inv[:64]
    with pytest.raises(ValueError, match=r"\(64, 8\), too few for a weight of shape \(96, 160\)"):
        te.read_rowwise(weight, name="w")


def test_a_recipe_becomes_megatron_s_fp8_fields() -> None:
    fields = te.config_fields(Recipe("mxfp8", "skip:1,2"), num_layers=6)
    assert fields["fp8"] == "e4m3"
    assert fields["fp8_recipe"] == "mxfp8"
    assert (fields["num_layers_at_start_in_bf16"], fields["num_layers_at_end_in_bf16"]) == (1, 2)
    assert te.config_fields(Recipe("bf16", "all"), num_layers=6) == {}


def test_a_selection_with_gaps_is_refused_under_transformer_engine() -> None:
    with pytest.raises(ValueError, match="fraction:0.5"):
        te.config_fields(Recipe("mxfp8", "fraction:0.5"), num_layers=6)
