"""Quantize, dequantize, fake-quantize: one entry point each, over the fastest exact backend."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from mx_quant import backends
from mx_quant.call import Call, Operation
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


def _backend(
    op: Operation, x: Tensor, grid: Grid, axis: int, *, result: torch.dtype | None = None
) -> ModuleType:
    call = Call(op, x.device.type, x.dtype, grid, axis, tuple(x.shape), result)
    return backends.choose(call).module


def quantize(x: Tensor, *, grid: Grid, axis: int = -1, out: MXTensor | None = None) -> MXTensor:
    """``x`` (bf16, fp16 or fp32, ``[..., N, K]``) on ``grid``.

    ``axis=-1`` is rowwise (blocks along K, the last axis), ``axis=-2`` columnwise. NaN becomes the
    canonical byte 0x7F. ``out``: written and returned instead of new memory; it must not overlap
    ``x``.

    Raises ValueError for another dtype or axis, for ragged blocks, and for an ``out`` of another
    shape, grid, axis or device.
    """
    axis = _check_input(x, grid, axis)
    if out is None:
        made: MXTensor = _backend("quantize", x, grid, axis).quantize(x, grid=grid, axis=axis)
        return made
    held, asked = (out.shape, out.grid, out.axis, out.device), (x.shape, grid, axis, x.device)
    if held != asked:
        raise ValueError(
            f"out is {tuple(out.shape)} on grid {out.grid.id!r} axis {out.axis}, {out.device}; "
            f"expected {tuple(x.shape)} on grid {grid.id!r} axis {axis}, {x.device}"
        )
    _into(x, out if axis == -1 else None, out if axis == -2 else None)
    return out


def _into(x: Tensor, rowwise: MXTensor | None, columnwise: MXTensor | None) -> None:
    """Quantize into tensors of any strides; kernels write contiguous ones."""
    given = [t for t in (rowwise, columnwise) if t is not None]
    op: Operation = "quantize_both" if len(given) == 2 else "quantize"
    module = _backend(op, x, given[0].grid, given[-1].axis)
    packed = [None if t is None else _packed(t) for t in (rowwise, columnwise)]
    module.quantize_into(x, *packed)
    for target, written in zip((rowwise, columnwise), packed, strict=True):
        if target is not None and written is not None and written is not target:
            target.element_bytes.copy_(written.element_bytes)
            target.scales.copy_(written.scales)


def _packed(t: MXTensor) -> MXTensor:
    if t.elements.is_contiguous() and t.scales.is_contiguous():
        return t
    return MXTensor.from_bytes(
        torch.empty(t.shape, dtype=torch.uint8, device=t.device),
        torch.empty(t.scales.shape, dtype=t.scales.dtype, device=t.device),
        grid=t.grid,
        axis=t.axis,
    )


def quantize_both(x: Tensor, *, grid: Grid) -> tuple[MXTensor, MXTensor]:
    """(rowwise, columnwise): two quantizations of ``x``, read once where the kernel serves it."""
    _check_input(x, grid, -1)
    axis = _check_input(x, grid, -2)
    module = _backend("quantize_both", x, grid, axis)
    made: tuple[MXTensor, MXTensor] = module.quantize_both(x, grid=grid)
    return made


def quantize_into(x: Tensor, rowwise: MXTensor, *, columnwise: bool) -> MXTensor | None:
    """Quantize ``x`` into the memory of ``rowwise``; also returns it columnwise if asked to.

    Raises ValueError when the shapes differ.
    """
    grid = rowwise.grid
    _check_input(x, grid, -1)
    if tuple(x.shape) != tuple(rowwise.shape):
        raise ValueError(f"tensor {tuple(rowwise.shape)} cannot take a value of {tuple(x.shape)}")
    if not columnwise:
        _into(x, rowwise, None)
        return None
    _check_input(x, grid, -2)
    scales = grid.scale_shape(tuple(x.shape), axis=-2)
    column = MXTensor.from_bytes(
        torch.empty(x.shape, dtype=torch.uint8, device=x.device),
        torch.empty(scales, dtype=grid.scale_dtype, device=x.device),
        grid=grid,
        axis=-2,
    )
    _into(x, rowwise, column)
    return column


def dequantize(
    t: MXTensor, *, dtype: torch.dtype = torch.float32, out: Tensor | None = None
) -> Tensor:
    """The values of ``t``: element * scale in fp32, rounded once to ``dtype``.

    ``out``: written and returned instead of new memory. Raises ValueError when it has another
    shape, dtype or device.
    """
    _check_out(out, t.elements, dtype)
    call = Call("dequantize", t.device.type, dtype, t.grid, t.axis, tuple(t.shape))
    module = backends.choose(call).module
    values: Tensor = module.dequantize(t, dtype=dtype, out=_writable(out))
    return values if out is None or values is out else out.copy_(values)


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
    ValueError when it has another shape, dtype or device.
    """
    axis = _check_input(x, grid, axis)
    dtype = x.dtype if dtype is None else dtype
    _check_out(out, x, dtype)
    module = _backend("fake_quantize", x, grid, axis, result=dtype)
    values: Tensor = module.fake_quantize(x, grid=grid, axis=axis, dtype=dtype, out=_writable(out))
    return values if out is None or values is out else out.copy_(values)


def _writable(out: Tensor | None) -> Tensor | None:
    return out if out is not None and out.is_contiguous() else None


def _check_out(out: Tensor | None, like: Tensor, dtype: torch.dtype) -> None:
    if out is not None and (out.shape, out.dtype, out.device) != (like.shape, dtype, like.device):
        raise ValueError(
            f"out is {out.dtype} {tuple(out.shape)}, {out.device}; expected {dtype} "
            f"{tuple(like.shape)}, {like.device}"
        )


def backend(device: str = "cpu") -> str:
    """Which backend serves bf16 tensors on ``device`` on the MXFP8 grid, and why."""
    return str(backends.choose(backends.typical(device)))


def explain(x: Tensor, *, grid: Grid, axis: int = -1, op: Operation = "quantize") -> str:
    """Which backend serves ``op`` on ``x``, and why not a faster one. Raises as ``quantize``."""
    axis = _check_input(x, grid, axis)
    call = Call(op, x.device.type, x.dtype, grid, axis, tuple(x.shape))
    return str(backends.choose(call))
