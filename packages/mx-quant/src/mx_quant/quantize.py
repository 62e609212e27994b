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


def quantize(x: Tensor, *, grid: Grid, axis: int = -1) -> MXTensor:
    """``x`` (bf16, fp16 or fp32, ``[..., N, K]``) on ``grid``.

    ``axis=-1`` is rowwise (blocks along K, the last axis), ``axis=-2`` columnwise. NaN becomes the
    canonical byte 0x7F. Raises ValueError for another dtype or axis and for ragged blocks.
    """
    axis = _check_input(x, grid, axis)
    if native.supports(x, grid=grid, axis=axis):
        return native.quantize(x, grid=grid, axis=axis)
    return eager.quantize(x, grid=grid, axis=axis)


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


def dequantize(t: MXTensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """The values of ``t``: element * scale in fp32, rounded once to ``dtype``."""
    if native.supports_dequantize(t, dtype):
        return native.dequantize(t, dtype=dtype)
    return eager.dequantize(t, dtype=dtype)


def fake_quantize(
    x: Tensor, *, grid: Grid, axis: int = -1, dtype: torch.dtype | None = None
) -> Tensor:
    """``dequantize(quantize(x))`` in one pass, in ``dtype`` (default: that of ``x``)."""
    axis = _check_input(x, grid, axis)
    out = x.dtype if dtype is None else dtype
    if native.supports(x, grid=grid, axis=axis) and out in native.KINDS:
        return native.fake_quantize(x, grid=grid, axis=axis, dtype=out)
    return eager.dequantize(eager.quantize(x, grid=grid, axis=axis), dtype=out)


def backend() -> str:
    """Which backend serves CPU tensors, and why. Other devices are served by torch eager."""
    found = native.load()
    if found.lib is None:
        return f"eager: {found.reason}"
    return f"native ({found.level}): {found.reason}"
