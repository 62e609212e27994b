"""Quantize, dequantize, fake-quantize: one entry point each, over the fastest exact backend."""

from __future__ import annotations

import torch
from torch import Tensor

from mx_quant import eager, native
from mx_quant.grids import Grid
from mx_quant.tensor import MXTensor, normalize_axis

_INPUTS = (torch.bfloat16, torch.float16, torch.float32)


def _check_input(x: Tensor, grid: Grid, axis: int) -> int:
    if x.dtype not in _INPUTS:
        raise ValueError(
            f"cannot quantize a {x.dtype} tensor of shape {tuple(x.shape)}: expected bf16, fp16 or "
            "fp32; convert it first"
        )
    axis = normalize_axis(axis, x.ndim)
    grid.scale_shape(tuple(x.shape), axis=axis)
    return axis


def quantize(x: Tensor, *, grid: Grid, axis: int = -1, out: MXTensor | None = None) -> MXTensor:
    """``x`` (bf16, fp16 or fp32, ``[..., N, K]``) on ``grid``.

    ``axis=-1`` is rowwise (blocks along K, the last axis), ``axis=-2`` columnwise. NaN becomes the
    canonical byte 0x7F. ``out``: written and returned instead of new memory.

    Raises ValueError for another dtype or axis, for ragged blocks, and for an ``out`` of another
    shape, grid or axis.
    """
    axis = _check_input(x, grid, axis)
    if out is not None:
        return _quantize_to(x, out, grid, axis)
    if native.supports(x, grid=grid, axis=axis):
        return native.quantize(x, grid=grid, axis=axis)
    return eager.quantize(x, grid=grid, axis=axis)


def _quantize_to(x: Tensor, out: MXTensor, grid: Grid, axis: int) -> MXTensor:
    if (tuple(out.shape), out.grid, out.axis) != (tuple(x.shape), grid, axis):
        raise ValueError(
            f"out is {tuple(out.shape)} on grid {out.grid.id!r} axis {out.axis}; expected "
            f"{tuple(x.shape)} on grid {grid.id!r} axis {axis}"
        )
    in_place = out.elements.is_contiguous() and out.scales.is_contiguous()
    if in_place and native.supports(x, grid=grid, axis=axis):
        native.quantize_into(x, out if axis == -1 else None, out if axis == -2 else None)
        return out
    result = quantize(x, grid=grid, axis=axis)
    out.element_bytes.copy_(result.element_bytes)
    out.scales.copy_(result.scales)
    return out


def quantize_both(x: Tensor, *, grid: Grid) -> tuple[MXTensor, MXTensor]:
    """(rowwise, columnwise): two quantizations of ``x``, read once where the kernel serves it."""
    _check_input(x, grid, -1)
    axis = _check_input(x, grid, -2)
    if native.supports(x, grid=grid, axis=axis):
        return native.quantize_both(x, grid=grid)
    return eager.quantize(x, grid=grid, axis=-1), eager.quantize(x, grid=grid, axis=-2)


def quantize_into(x: Tensor, rowwise: MXTensor, *, columnwise: bool) -> MXTensor | None:
    """Quantize ``x`` into the memory of ``rowwise``; also returns it columnwise if asked to.

    Raises ValueError when the shapes differ.
    """
    grid = rowwise.grid
    _check_input(x, grid, -1)
    if tuple(x.shape) != tuple(rowwise.shape):
        raise ValueError(f"tensor {tuple(rowwise.shape)} cannot take a value of {tuple(x.shape)}")
    in_place = rowwise.elements.is_contiguous() and rowwise.scales.is_contiguous()
    if in_place and native.supports(x, grid=grid, axis=-2 if columnwise else -1):
        column = native.empty(tuple(x.shape), grid=grid, axis=-2) if columnwise else None
        native.quantize_into(x, rowwise, column)
        return column
    fresh = quantize(x, grid=grid)
    rowwise.element_bytes.copy_(fresh.element_bytes)
    rowwise.scales.copy_(fresh.scales)
    return quantize(x, grid=grid, axis=-2) if columnwise else None


def dequantize(
    t: MXTensor, *, dtype: torch.dtype = torch.float32, out: Tensor | None = None
) -> Tensor:
    """The values of ``t``: element * scale in fp32, rounded once to ``dtype``.

    ``out``: written and returned instead of new memory. Raises ValueError when it has another
    shape or dtype.
    """
    _check_out(out, t.shape, dtype)
    if native.supports_dequantize(t, dtype) and (out is None or out.is_contiguous()):
        return native.dequantize(t, dtype=dtype, out=out)
    values = eager.dequantize(t, dtype=dtype)
    return values if out is None else out.copy_(values)


def fake_quantize(
    x: Tensor,
    *,
    grid: Grid,
    axis: int = -1,
    dtype: torch.dtype | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """``dequantize(quantize(x))`` in one pass, in ``dtype`` (default: that of ``x``).

    ``out``: written and returned instead of new memory; it must not overlap ``x``. Raises
    ValueError when it has another shape or dtype.
    """
    axis = _check_input(x, grid, axis)
    dtype = x.dtype if dtype is None else dtype
    _check_out(out, x.shape, dtype)
    served = native.supports(x, grid=grid, axis=axis) and dtype in native.KINDS
    if served and (out is None or out.is_contiguous()):
        return native.fake_quantize(x, grid=grid, axis=axis, dtype=dtype, out=out)
    values = eager.dequantize(eager.quantize(x, grid=grid, axis=axis), dtype=dtype)
    return values if out is None else out.copy_(values)


def _check_out(out: Tensor | None, shape: torch.Size, dtype: torch.dtype) -> None:
    if out is not None and (out.shape != shape or out.dtype != dtype):
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}; expected {dtype} {tuple(shape)}")


def backend() -> str:
    """Which backend serves CPU tensors, and why. Other devices are served by torch eager."""
    found = native.load()
    if found.lib is None:
        return f"eager: {found.reason}"
    return f"native ({found.level}): {found.reason}"
