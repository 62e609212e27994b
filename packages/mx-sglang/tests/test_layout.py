import pytest
import torch

import mx_quant
from mx_quant.grids import MXFP8, MXFP8_FLOOR
from mx_sglang import from_engine, quantization_config, to_engine

NAME = "model.layers.0.mlp.down_proj.weight"


def weight(seed: int = 0) -> mx_quant.MXTensor:
    generator = torch.Generator().manual_seed(seed)
    return mx_quant.quantize(
        torch.randn(64, 96, generator=generator).to(torch.bfloat16), grid=MXFP8
    )


def test_a_round_trip_through_sglangs_layout_keeps_every_byte():
    w = weight()
    back = from_engine(dict(to_engine(NAME, w)), grid=MXFP8)
    assert list(back) == [NAME]
    assert mx_quant.digest(back[NAME]) == mx_quant.digest(w)


def test_a_plain_tensor_passes_through_untouched():
    t = torch.ones(8, dtype=torch.bfloat16)
    ((name, sent),) = to_engine("model.norm.weight", t)
    assert name == "model.norm.weight"
    assert sent is t


def test_another_grid_is_refused_by_name():
    w = mx_quant.quantize(torch.randn(32, 32, dtype=torch.bfloat16), grid=MXFP8_FLOOR)
    with pytest.raises(ValueError, match="mxfp8_floor|floor"):
        to_engine(NAME, w)


def test_a_columnwise_tensor_is_refused():
    w = mx_quant.quantize(torch.randn(32, 32, dtype=torch.bfloat16), grid=MXFP8, axis=-2)
    with pytest.raises(ValueError, match="axis -2"):
        to_engine(NAME, w)


def test_a_part_that_is_missing_is_named():
    parts = dict(to_engine(NAME, weight()))
    elements_only = {NAME: parts[NAME]}
    with pytest.raises(ValueError, match=r"elements without scales.*down_proj"):
        from_engine(elements_only, grid=MXFP8)
    scales_only = {k: v for k, v in parts.items() if k != NAME}
    with pytest.raises(ValueError, match=r"scales without elements.*down_proj"):
        from_engine(scales_only, grid=MXFP8)


def test_a_grid_tensor_that_is_no_weight_has_no_sglang_name():
    with pytest.raises(ValueError, match=r"'<module>\.weight'"):
        to_engine("model.table", weight())


def test_the_config_lists_plain_modules_by_full_name():
    config = quantization_config(["model.layers.0.mlp.gate", "lm_head"])
    assert config["modules_to_not_convert"] == ["lm_head", "model.layers.0.mlp.gate"]
    assert config["quant_method"] == "mxfp8"
