"""Row permutations between Hugging Face tensors and Megatron-Core's fused weights.

Megatron-Core keeps Q, K and V in one weight, interleaved by key/value group: for each group its
query heads, then its key head, then its value head. Gate and up are stacked. Only whole rows move,
so a rowwise-quantized weight is permuted by moving its element and scale rows: no arithmetic.

Shapes: N rows, K columns, G key/value groups, D head size, Q query heads a group.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum

import torch
from torch import Tensor

from mx_megatron.architecture import Architecture
from mx_quant import MXTensor


class Fusion(StrEnum):
    """How a Megatron-Core parameter is made of Hugging Face tensors."""

    SINGLE = "single"
    QKV = "qkv"
    GATE_UP = "gate_up"


def fuse(parts: Sequence[Tensor], fusion: Fusion, arch: Architecture) -> Tensor:
    """The Megatron-Core weight made of Hugging Face ``parts`` (each ``[N_i, K]``)."""
    if fusion is Fusion.SINGLE:
        return parts[0]
    if fusion is Fusion.GATE_UP:
        return torch.cat(list(parts))
    groups = arch.num_kv_heads
    grouped = [part.reshape(groups, -1, part.shape[-1]) for part in parts]
    return torch.cat(grouped, dim=1).reshape(-1, parts[0].shape[-1])


def split(weight: Tensor, fusion: Fusion, arch: Architecture) -> tuple[Tensor, ...]:
    """The inverse of ``fuse``: contiguous Hugging Face tensors, views where the rows allow."""
    if fusion is Fusion.SINGLE:
        return (weight,)
    if fusion is Fusion.GATE_UP:
        return tuple(weight.chunk(2))
    groups, size = arch.num_kv_heads, arch.head_dim
    grouped = weight.view(groups, -1, weight.shape[-1])
    counts = [arch.num_heads // groups * size, size, size]
    return tuple(part.reshape(-1, weight.shape[-1]) for part in grouped.split(counts, dim=1))


def split_mx(weight: MXTensor, fusion: Fusion, arch: Architecture) -> tuple[MXTensor, ...]:
    """``split`` for a rowwise MXTensor with one-row blocks: the same rows of elements and scales.

    Raises ValueError for other blocks, which span rows.
    """
    if weight.axis != -1 or weight.grid.block[0] != 1:
        raise ValueError(
            f"weight on grid {weight.grid.id!r}, axis {weight.axis}: rows can be permuted only "
            "when every block lies within one row"
        )
    apply: Callable[[Tensor], tuple[Tensor, ...]] = lambda t: split(t, fusion, arch)  # noqa: E731
    elements, scales = apply(weight.element_bytes), apply(weight.scales)
    return tuple(
        MXTensor.from_bytes(e, s, grid=weight.grid) for e, s in zip(elements, scales, strict=True)
    )
