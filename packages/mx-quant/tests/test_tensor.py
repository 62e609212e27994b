import pytest
import torch

from mx_quant.grids import (
    FP8_BLOCK_128X128,
    FP8_TENSORWISE,
    GRIDS,
    MXFP8,
    MXFP8_32X32,
    MXFP8_FLOOR,
    Grid,
    by_id,
)
from mx_quant.quantize import quantize
from mx_quant.report import compare
from mx_quant.tensor import MXTensor, cat_columns, cat_rows

X = torch.randn(128, 96, generator=torch.Generator().manual_seed(0)).bfloat16()


def test_wrong_parts_are_refused_with_every_problem_at_once() -> None:
    t = quantize(X, grid=MXFP8)
    with pytest.raises(ValueError, match="elements are torch.uint8.*scales have shape"):
        MXTensor(t.element_bytes, t.scales[:, :2], MXFP8)


def test_bytes_view_memory_and_come_back() -> None:
    t = quantize(X, grid=MXFP8)
    again = MXTensor.from_bytes(t.element_bytes, t.scale_bytes, grid=MXFP8)
    assert again.elements.data_ptr() == t.elements.data_ptr()
    assert compare(t, again).same_bytes
    assert t.nbytes == X.numel() + X.numel() // 32


def test_rows_are_views_and_concatenate_to_the_whole() -> None:
    for axis in (-1, -2):
        t = quantize(X, grid=MXFP8, axis=axis)
        parts = [t.rows(0, 32), t.rows(32, 128)]
        assert parts[0].elements.data_ptr() == t.elements.data_ptr()
        assert compare(cat_rows(parts), t).same_bytes


def test_rows_equal_quantizing_the_rows() -> None:
    assert compare(quantize(X, grid=MXFP8).rows(5, 9), quantize(X[5:9], grid=MXFP8)).same_bytes


def test_rows_that_cut_a_block_are_refused() -> None:
    with pytest.raises(ValueError, match="cut at multiples of 32"):
        quantize(X, grid=MXFP8_32X32).rows(0, 16)
    with pytest.raises(ValueError, match="128 rows"):
        quantize(X, grid=MXFP8).rows(100, 129)


def test_columns_are_views_and_concatenate_to_the_whole() -> None:
    for axis in (-1, -2):
        t = quantize(X, grid=MXFP8, axis=axis)
        size = t.grid.block_for(axis)[1]
        parts = [t.columns(0, 32), t.columns(32, 96)]
        assert parts[0].elements.data_ptr() == t.elements.data_ptr()
        assert compare(cat_columns(parts), t).same_bytes
        if size > 1:
            with pytest.raises(ValueError, match="columns 0:16 cut through blocks of 32 columns"):
                t.columns(0, 16)


def test_columns_equal_quantizing_the_columns() -> None:
    part = quantize(X, grid=MXFP8).columns(32, 64)
    assert compare(part, quantize(X[:, 32:64], grid=MXFP8)).same_bytes
    line = quantize(X[0], grid=MXFP8)
    assert compare(line.columns(32, 96), quantize(X[0, 32:], grid=MXFP8)).same_bytes
    with pytest.raises(ValueError, match="rows 0:1 of a tensor with 0 rows"):
        line.rows(0, 1)


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("grid", GRIDS.values(), ids=lambda g: g.id)
def test_padding_equals_quantizing_the_padded_tensor_and_crops_back(grid: Grid, axis: int) -> None:
    x = torch.stack([X, -2 * X])
    t = quantize(x, grid=grid, axis=axis)
    padded = t.pad(256, 160)
    expected = quantize(torch.nn.functional.pad(x, (0, 64, 0, 128)), grid=grid, axis=axis)
    assert compare(padded, expected).same_bytes
    assert compare(padded.crop(128, 96), t).same_bytes
    assert t.pad(128, 96) is t


def test_padding_and_cropping_refuse_the_wrong_direction_and_cut_blocks() -> None:
    t = quantize(X, grid=MXFP8)
    with pytest.raises(ValueError, match=r"cannot pad \(128, 96\) to \(64, 96\); crop"):
        t.pad(64, 96)
    with pytest.raises(ValueError, match=r"cannot crop \(128, 96\) to \(128, 128\); pad"):
        t.crop(128, 128)
    with pytest.raises(ValueError, match="axis -1 has 48 elements, not a multiple of 32"):
        t.crop(128, 48)
    with pytest.raises(ValueError, match="needs at least 2 dimensions"):
        quantize(X[0], grid=MXFP8).pad(1, 128)


def test_tensorwise_has_one_scale_for_each_matrix() -> None:
    t = quantize(torch.stack([X, 4 * X]), grid=FP8_TENSORWISE)
    assert t.scales.shape == (2, 1, 1)
    assert (t.scales[1] == 4 * t.scales[0]).all()
    assert t.scales[0] == X.abs().max().float() / 448


def test_parts_of_different_grids_are_not_concatenated() -> None:
    with pytest.raises(ValueError, match="mxfp8_floor"):
        cat_rows([quantize(X, grid=MXFP8), quantize(X, grid=MXFP8_FLOOR)])
    with pytest.raises(ValueError, match="at least one part"):
        cat_rows([])


def test_a_ragged_part_may_only_be_the_last() -> None:
    whole, ragged = (quantize(x, grid=FP8_BLOCK_128X128) for x in (X, X[:100]))
    assert cat_rows([whole, ragged]).shape == (228, 96)
    with pytest.raises(ValueError, match="only the last part may be ragged"):
        cat_rows([ragged, whole])


def test_a_clone_has_its_own_memory() -> None:
    t = quantize(X, grid=MXFP8)
    copy = t.clone()
    copy.element_bytes[0, 0] ^= 1
    assert not compare(t, copy).same_bytes


def test_a_single_block_keeps_its_scale_axis() -> None:
    assert quantize(X[:, :32], grid=MXFP8).scales.shape == (128, 1)


def test_an_unknown_grid_id_lists_the_known_ones() -> None:
    assert by_id("mxfp8") is MXFP8
    with pytest.raises(ValueError, match="unknown grid 'mxfp9'.*fp8_block_128x128.*mxfp8"):
        by_id("mxfp9")
