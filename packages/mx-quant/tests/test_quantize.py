"""Every backend equals the reference, byte for byte."""

from types import ModuleType

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mx_quant_testdata import KINDS, blocks_with_amax, every_bf16, mixed

from mx_quant import eager, native, reference
from mx_quant.grids import GRIDS, MXFP8, MXFP8_E5M2, MXFP8_LOG2, Grid
from mx_quant.quantize import backend as describe
from mx_quant.quantize import (
    dequantize,
    explain,
    fake_quantize,
    quantize,
    quantize_both,
    quantize_into,
)
from mx_quant.report import compare
from mx_quant.tensor import MXTensor

DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def same(a: MXTensor, b: MXTensor) -> None:
    result = compare(a, b)
    assert result.same_bytes, result


def grids_of(backend: ModuleType) -> list[Grid]:
    return [g for g in GRIDS.values() if backend is eager or native.supports_grid(g)]


@pytest.mark.parametrize("axis", [-1, -2])
@pytest.mark.parametrize("grid", [MXFP8, MXFP8_E5M2], ids=lambda g: g.id)
def test_blocks_with_every_bf16_amax_equal_the_reference(
    backend: ModuleType, grid: Grid, axis: int
) -> None:
    x = blocks_with_amax(every_bf16())
    x = x if axis == -1 else x.t().contiguous()
    expected = reference.quantize(x, grid=grid, axis=axis)
    same(backend.quantize(x, grid=grid, axis=axis), expected)
    values = reference.dequantize(expected, dtype=torch.bfloat16)
    got = backend.dequantize(expected, dtype=torch.bfloat16)
    assert compare(got, values).same_values


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_mixed_data_equals_the_reference_on_every_grid_and_axis(
    backend: ModuleType, dtype: torch.dtype, kind: str
) -> None:
    x = mixed(64, 160, dtype, kind=kind)
    for grid in grids_of(backend):
        for axis in (-1, -2):
            expected = reference.quantize(x, grid=grid, axis=axis)
            same(backend.quantize(x, grid=grid, axis=axis), expected)
            for out in DTYPES:
                values = reference.dequantize(expected, dtype=out)
                result = compare(backend.dequantize(expected, dtype=out), values)
                assert result.same_values, (grid.id, axis, out, result)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_fake_quantize_equals_quantize_then_dequantize(dtype: torch.dtype, kind: str) -> None:
    x = mixed(64, 96, dtype, kind=kind, seed=1)
    for grid in GRIDS.values():
        for axis in (-1, -2):
            expected = reference.quantize(x, grid=grid, axis=axis)
            for out in DTYPES:
                values = reference.dequantize(expected, dtype=out)
                got = fake_quantize(x, grid=grid, axis=axis, dtype=out)
                assert got.dtype == out
                assert compare(got, values).same_values, (grid.id, axis, out)
    assert fake_quantize(x, grid=MXFP8).dtype == dtype


def test_decoding_all_pairs_of_element_and_scale_equals_the_reference(backend: ModuleType) -> None:
    codes = torch.arange(256, dtype=torch.uint8).repeat(256, 1)
    scales = torch.arange(256, dtype=torch.uint8)
    for grid in (MXFP8, MXFP8_E5M2):
        row = MXTensor.from_bytes(codes, scales.unsqueeze(1).repeat(1, 8), grid=grid)
        column = MXTensor.from_bytes(
            codes.t().contiguous(), scales.repeat(8, 1).contiguous(), grid=grid, axis=-2
        )
        for t in (row, column):
            for dtype in DTYPES:
                values = reference.dequantize(t, dtype=dtype)
                assert compare(backend.dequantize(t, dtype=dtype), values).same_values


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    bits=st.lists(st.integers(0, 2**32 - 1), min_size=64, max_size=64),
    exponent=st.integers(-149, 127),
    grid=st.sampled_from([g for g in GRIDS.values() if native.supports_grid(g)]),
)
def test_arbitrary_fp32_bits_equal_the_reference(
    bits: list[int], exponent: int, grid: Grid
) -> None:
    raw = torch.tensor(bits, dtype=torch.int64).to(torch.int32).view(torch.float32)
    near = (raw.view(torch.int32) & 0x7FFFFF | 0x3F800000).view(torch.float32) * 2.0**exponent
    for x in (raw.reshape(2, 32), near.reshape(2, 32), near.bfloat16().reshape(2, 32)):
        for axis, y in ((-1, x), (-2, x.t().contiguous())):
            same(quantize(y, grid=grid, axis=axis), reference.quantize(y, grid=grid, axis=axis))


def test_both_in_one_pass_equals_two_passes_for_experts() -> None:
    x = mixed(96, 64, torch.bfloat16, kind="heavy").reshape(3, 32, 64)
    row, column = quantize_both(x, grid=MXFP8)
    same(row, reference.quantize(x, grid=MXFP8))
    same(column, reference.quantize(x, grid=MXFP8, axis=-2))
    assert row.scales.shape == (3, 32, 2)
    assert column.scales.shape == (3, 1, 64)


def test_strips_of_experts_do_not_run_into_each_other() -> None:
    x = mixed(48, 32, torch.bfloat16, kind="gauss").reshape(3, 16, 32)
    with pytest.raises(ValueError, match="axis -2 has 16 elements, not a multiple of 32"):
        quantize(x, grid=MXFP8, axis=-2)


def test_non_contiguous_input_gives_the_bytes_of_its_copy() -> None:
    x = mixed(64, 64, torch.bfloat16, kind="heavy").t()
    same(quantize(x, grid=MXFP8), reference.quantize(x.contiguous(), grid=MXFP8))
    same(quantize(x, grid=MXFP8, axis=-2), reference.quantize(x.contiguous(), grid=MXFP8, axis=-2))


@pytest.mark.parametrize("shape", [(32,), (1, 32), (5, 32), (2, 3, 4, 64)])
def test_shapes_of_any_rank_keep_their_leading_axes(shape: tuple[int, ...]) -> None:
    x = torch.randn(shape).bfloat16()
    t = quantize(x, grid=MXFP8)
    assert t.shape == x.shape
    assert t.scales.shape == (*shape[:-1], shape[-1] // 32)
    same(t, reference.quantize(x, grid=MXFP8))


def test_quantizing_into_existing_memory_keeps_its_addresses() -> None:
    old = quantize(torch.zeros(64, 64).bfloat16(), grid=MXFP8)
    addresses = old.elements.data_ptr(), old.scales.data_ptr()
    x = mixed(64, 64, torch.bfloat16, kind="heavy")
    column = quantize_into(x, old, columnwise=True)
    assert (old.elements.data_ptr(), old.scales.data_ptr()) == addresses
    same(old, reference.quantize(x, grid=MXFP8))
    assert column is not None
    same(column, reference.quantize(x, grid=MXFP8, axis=-2))
    with pytest.raises(ValueError, match=r"cannot take a value of \(32, 64\)"):
        quantize_into(x[:32], old, columnwise=False)


def test_ragged_k_is_refused_with_shape_axis_and_remedy() -> None:
    with pytest.raises(ValueError, match=r"\(4, 40\).*axis -1.*pad it with zeros to 64"):
        quantize(torch.zeros(4, 40), grid=MXFP8)


def test_other_dtypes_and_axes_are_refused() -> None:
    with pytest.raises(ValueError, match="expected bf16, fp16 or fp32"):
        quantize(torch.zeros(4, 32, dtype=torch.float64), grid=MXFP8)
    with pytest.raises(ValueError, match="blocks run along the last axis"):
        quantize(torch.zeros(2, 4, 32), grid=MXFP8, axis=0)


def test_empty_tensors_pass_through() -> None:
    t = quantize(torch.zeros(0, 32).bfloat16(), grid=MXFP8)
    assert t.shape == (0, 32)
    assert dequantize(t).shape == (0, 32)


def test_encoding_values_on_the_grid_gives_their_bytes_back(backend: ModuleType) -> None:
    for dtype in (torch.bfloat16, torch.float32):
        x = mixed(64, 64, dtype, kind="heavy")
        t = reference.quantize(x, grid=MXFP8)
        back, off_grid = backend.encode(reference.dequantize(t), t.scales, grid=MXFP8)
        assert off_grid == 0
        same(back, t)


def test_encoding_counts_values_that_are_off_the_grid(backend: ModuleType) -> None:
    t = reference.quantize(mixed(32, 64, torch.bfloat16, kind="gauss"), grid=MXFP8)
    values = reference.dequantize(t, dtype=torch.bfloat16)
    values[3, 5] = values[3, 5] * 1.0078125 if values[3, 5] else 1e-30
    values[7, 33] = float("nan")
    _, off_grid = backend.encode(values, t.scales, grid=MXFP8)
    assert off_grid == 1, "a NaN is on the grid: its byte is 0x7F"


def test_backend_says_which_and_why() -> None:
    assert describe().startswith("native (" if native.available() else "eager (")
    x = torch.zeros(2, 48, 32)
    wide = explain(x.reshape(96, 32), grid=MXFP8_LOG2)
    assert wide.startswith("eager (")
    assert "not native: " in wide
    if native.available():
        assert "grid 'mxfp8_log2' has no kernel" in wide
        assert "serves CPU tensors, not cuda" in describe("cuda")
        assert "the tensor is empty" in explain(x[:0], grid=MXFP8)


@pytest.mark.parametrize("grid", GRIDS.values(), ids=lambda g: g.id)
@pytest.mark.parametrize("axis", [-1, -2])
def test_out_is_filled_and_returned_whatever_its_layout(grid: Grid, axis: int) -> None:
    x = mixed(128, 256, torch.bfloat16, kind="heavy")
    expected = reference.quantize(x, grid=grid, axis=axis)
    values = reference.dequantize(expected, dtype=torch.bfloat16)

    wide = torch.zeros(128, 512, dtype=torch.uint8).view(grid.element.torch_dtype)
    for elements in (wide[:, :256].contiguous(), wide[:, 256:]):
        target = MXTensor(elements, torch.zeros_like(expected.scales), grid, axis)
        assert quantize(x, grid=grid, axis=axis, out=target) is target
        same(target, expected)

    room = torch.full((128, 512), 7.0, dtype=torch.bfloat16)
    for out in (room[:, :256].contiguous(), room[:, 256:]):
        assert dequantize(expected, dtype=torch.bfloat16, out=out) is out
        assert compare(out, values).same_values
        out.fill_(7)
        assert fake_quantize(x, grid=grid, axis=axis, out=out) is out
        assert compare(out, values).same_values
    assert bool((room[:, :256] == 7).all())


def test_out_that_does_not_fit_is_refused_and_left_alone() -> None:
    x = mixed(64, 64, torch.bfloat16, kind="gauss")
    t = quantize(x, grid=MXFP8)
    for wrong in (quantize(x[:32], grid=MXFP8), quantize(x, grid=MXFP8, axis=-2)):
        before = wrong.element_bytes.clone()
        with pytest.raises(ValueError, match=r"out is .* expected \(64, 64\) on grid 'mxfp8'"):
            quantize(x, grid=MXFP8, out=wrong)
        assert torch.equal(wrong.element_bytes, before)
    for out in (torch.zeros(64, 32, dtype=torch.bfloat16), torch.zeros(64, 64)):
        with pytest.raises(ValueError, match=r"out is torch.* expected torch.bfloat16 \(64, 64\)"):
            dequantize(t, dtype=torch.bfloat16, out=out)
        with pytest.raises(ValueError, match=r"out is torch.* expected torch.bfloat16 \(64, 64\)"):
            fake_quantize(x, grid=MXFP8, out=out)
        assert not out.any()
