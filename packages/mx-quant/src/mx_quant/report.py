"""How two quantized tensors differ: grid, bytes and values, reported separately."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mx_quant.tensor import MXTensor


@dataclass(frozen=True, slots=True)
class Comparison:
    """The result of ``compare(a, b)``.

    ``same_grid``: grid, axis, shape and dtype agree. ``same_bytes``: also every stored byte.
    ``same_values``: every represented value agrees (NaN equals NaN), whatever the bytes.
    ``differing_bytes``: stored bytes that differ; None where the layouts cannot be compared.
    ``first_mismatch``: index of the first element whose value differs, else of the first element
    byte that differs, else None. ``sqnr_db``: 10 log10(sum a^2 / sum (a - b)^2) over the elements
    where both are finite; inf when they agree.
    """

    same_grid: bool
    same_bytes: bool
    same_values: bool
    first_mismatch: tuple[int, ...] | None
    sqnr_db: float
    differing_bytes: int | None


def _values(t: MXTensor | Tensor) -> Tensor:
    return t.dequantize(torch.float32) if isinstance(t, MXTensor) else t.detach().float()


def _parts(t: MXTensor | Tensor) -> list[Tensor]:
    if isinstance(t, MXTensor):
        return [t.element_bytes.contiguous(), t.scales.contiguous().view(torch.uint8)]
    return [t.detach().contiguous().view(torch.uint8)]


def _same_layout(a: MXTensor | Tensor, b: MXTensor | Tensor) -> bool:
    if isinstance(a, MXTensor) and isinstance(b, MXTensor):
        return (a.grid, a.axis, a.shape) == (b.grid, b.axis, b.shape)
    if isinstance(a, MXTensor) or isinstance(b, MXTensor):
        return False
    return (a.dtype, a.shape) == (b.dtype, b.shape)


def _first(mask: Tensor) -> tuple[int, ...] | None:
    hits = mask.reshape(-1).nonzero()
    if not len(hits):
        return None
    return tuple(int(i) for i in torch.unravel_index(hits[0, 0], mask.shape))


def sqnr_db(a: Tensor, b: Tensor) -> float:
    """Signal-to-quantization-noise ratio of ``b`` against ``a`` in dB, over finite elements."""
    x, y = a.double(), b.double()
    keep = x.isfinite() & y.isfinite()
    x, y = x[keep], y[keep]
    noise, signal = (x - y).square().sum(), x.square().sum()
    if noise == 0:
        return float("inf")
    return float(10 * torch.log10(signal / noise))


def compare(a: MXTensor | Tensor, b: MXTensor | Tensor) -> Comparison:
    """Compare two tensors of one shape. Raises ValueError when the shapes differ."""
    if tuple(a.shape) != tuple(b.shape):
        raise ValueError(f"cannot compare shape {tuple(a.shape)} with {tuple(b.shape)}")
    same_grid = _same_layout(a, b)
    va, vb = _values(a), _values(b)
    value_mask = (va != vb) & ~(va.isnan() & vb.isnan())
    first = _first(value_mask)
    differing: int | None = None
    if same_grid:
        masks = [p != q for p, q in zip(_parts(a), _parts(b), strict=True)]
        differing = sum(int(mask.sum()) for mask in masks)
        if first is None and isinstance(a, MXTensor):
            first = _first(masks[0])
    return Comparison(
        same_grid=same_grid,
        same_bytes=same_grid and differing == 0,
        same_values=not bool(value_mask.any()),
        first_mismatch=first,
        sqnr_db=sqnr_db(va, vb),
        differing_bytes=differing,
    )
