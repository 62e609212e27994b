import math

import pytest
import torch

from mx_quant.grids import MXFP8, MXFP8_PRE_2_13, MXFP8_ZERO_AS_ONE
from mx_quant.quantize import quantize
from mx_quant.report import compare, sqnr_db
from mx_quant.tensor import MXTensor

X = torch.randn(64, 64, generator=torch.Generator().manual_seed(0)).bfloat16()


def test_equal_tensors() -> None:
    result = compare(quantize(X, grid=MXFP8), quantize(X, grid=MXFP8))
    assert result.same_grid
    assert result.same_bytes
    assert result.same_values
    assert (result.first_mismatch, result.differing_bytes) == (None, 0)
    assert result.sqnr_db == math.inf


def test_a_flipped_byte_is_located_and_counted() -> None:
    a, b = quantize(X, grid=MXFP8), quantize(X, grid=MXFP8)
    b.element_bytes[9, 4] ^= 0x08
    result = compare(a, b)
    assert not result.same_bytes
    assert not result.same_values
    assert (result.first_mismatch, result.differing_bytes) == ((9, 4), 1)
    assert 0 < result.sqnr_db < 100


def test_equal_values_in_different_bytes_are_told_apart() -> None:
    codes = torch.full((1, 32), 0x40, dtype=torch.uint8)  # 2.0
    halved = torch.full((1, 32), 0x38, dtype=torch.uint8)  # 1.0
    scale = torch.full((1, 1), 127, dtype=torch.uint8)
    a = MXTensor.from_bytes(codes, scale, grid=MXFP8)
    b = MXTensor.from_bytes(halved, scale + 1, grid=MXFP8)
    result = compare(a, b)
    assert result.same_values
    assert not result.same_bytes
    assert (result.first_mismatch, result.differing_bytes) == ((0, 0), 33)


def test_another_grid_is_reported_even_where_the_values_agree() -> None:
    result = compare(quantize(X, grid=MXFP8), quantize(X, grid=MXFP8_PRE_2_13))
    assert not result.same_grid
    assert not result.same_bytes
    assert result.same_values
    assert result.differing_bytes is None


def test_rewriting_scale_byte_zero_to_one_doubles_a_block_that_is_not_zero() -> None:
    tiny = torch.full((1, 32), 2.0**-125)
    a, b = quantize(tiny, grid=MXFP8), quantize(tiny, grid=MXFP8_ZERO_AS_ONE)
    assert (a.scales.item(), b.scales.item()) == (0, 1)
    assert torch.equal(a.dequantize() * 2, b.dequantize())


def test_nan_equals_nan() -> None:
    x = X.clone()
    x[0, 0] = float("nan")
    assert compare(x, x.clone()).same_values


def test_plain_tensors_compare_by_bytes() -> None:
    result = compare(X, X.float())
    assert not result.same_grid
    assert result.same_values
    assert compare(X, X.clone()).same_bytes


def test_shapes_must_agree() -> None:
    with pytest.raises(ValueError, match=r"\(64, 64\) with \(64, 32\)"):
        compare(X, X[:, :32])


def test_sqnr_of_mxfp8_on_gaussian_data_is_about_31_db() -> None:
    x = torch.randn(256, 256, generator=torch.Generator().manual_seed(2))
    assert 30 < sqnr_db(x, quantize(x, grid=MXFP8).dequantize()) < 33
