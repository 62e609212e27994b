"""The PyTorch backend: any device, any grid, equal to the reference byte for byte.

It differs from the reference in using torch's float8 casts for the elements, after clamping and
masking what the casts leave to chance (saturation and NaN signs).
"""

from __future__ import annotations

import torch
from torch import Tensor

from mx_quant.call import Call
from mx_quant.grids import Grid, ScaleRule
from mx_quant.reference import (
    decode_scale,
    from_blocks,
    reciprocal,
    round_element,
    scale_and_factor,
    to_blocks,
)
from mx_quant.tensor import MXTensor


def _as_matrix(x: Tensor) -> Tensor:
    return x.reshape(1, -1) if x.ndim < 2 else x


def describe() -> str:
    """What serves here."""
    return "PyTorch operators"


def refusal(call: Call) -> str:
    """Empty: this backend serves every call."""
    del call
    return ""


def quantize(x: Tensor, *, grid: Grid, axis: int) -> MXTensor:
    """As ``mx_quant.quantize``; ``axis`` is -1 or -2."""
    matrix = _as_matrix(x.detach().to(torch.float32))
    blocks = to_blocks(matrix, grid.block_for(axis))
    scale, factor = scale_and_factor(blocks, grid)
    y = blocks / factor if grid.scale_dtype is torch.float32 else blocks * factor
    limit = grid.element.max
    cast = y.clamp(-limit, limit).to(grid.element.torch_dtype).view(torch.uint8)
    cast = torch.where(y.isnan(), grid.element.nan_byte, cast)
    elements = from_blocks(cast, matrix.shape).reshape(x.shape)
    scales = scale.squeeze(-1).squeeze(-2).reshape(grid.scale_shape(tuple(x.shape), axis=axis))
    return MXTensor(elements.view(grid.element.torch_dtype), scales, grid, axis)


def quantize_both(x: Tensor, *, grid: Grid) -> tuple[MXTensor, MXTensor]:
    """(rowwise, columnwise)."""
    return quantize(x, grid=grid, axis=-1), quantize(x, grid=grid, axis=-2)


def quantize_into(x: Tensor, rowwise: MXTensor | None, columnwise: MXTensor | None) -> None:
    """Quantize ``x`` into existing tensors of any strides."""
    for out in (rowwise, columnwise):
        if out is not None:
            fresh = quantize(x, grid=out.grid, axis=out.axis)
            out.element_bytes.copy_(fresh.element_bytes)
            out.scales.copy_(fresh.scales)


def fake_quantize(
    x: Tensor, *, grid: Grid, axis: int, dtype: torch.dtype, out: Tensor | None = None
) -> Tensor:
    """As ``mx_quant.fake_quantize``."""
    return dequantize(quantize(x, grid=grid, axis=axis), dtype=dtype, out=out)


def dequantize(t: MXTensor, *, dtype: torch.dtype, out: Tensor | None = None) -> Tensor:
    """As ``mx_quant.dequantize``."""
    values = _values(t).to(dtype)
    return values if out is None else out.copy_(values)


def _values(t: MXTensor) -> Tensor:
    scale = t.scales if t.grid.scale_dtype is torch.float32 else decode_scale(t.scales)
    matrix = _as_matrix(t.elements.to(torch.float32))
    blocks = to_blocks(matrix, t.grid.block_for(t.axis))
    scale_B = _as_matrix(scale).unsqueeze(-2).unsqueeze(-1)
    return from_blocks(blocks * scale_B, matrix.shape).reshape(t.shape)


def encode(x: Tensor, scales: Tensor, *, grid: Grid) -> tuple[MXTensor, int]:
    """Element bytes of values on the grid with rowwise ``scales``, and how many are off it."""
    blocks = to_blocks(_as_matrix(x.float()), grid.block_for(-1))
    scale_B = _as_matrix(scales).unsqueeze(-2).unsqueeze(-1)
    if grid.scale_dtype is torch.float32:
        y = blocks / scale_B
    else:
        y = blocks * reciprocal(scale_B.to(torch.int64), ScaleRule.ROUND_UP)
    codes = from_blocks(round_element(y, grid.element), _as_matrix(x).shape).reshape(x.shape)
    t = MXTensor(codes.view(grid.element.torch_dtype), scales, grid, -1)
    got = dequantize(t, dtype=torch.float32)
    same = (got.view(torch.int32) == x.float().view(torch.int32)) | (got.isnan() & x.isnan())
    # Several codes may overflow to Inf: it cannot be traced back to one.
    return t, int((~same | got.isinf()).sum())
