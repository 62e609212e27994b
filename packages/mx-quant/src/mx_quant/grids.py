"""Grids: element format, block shape and scale rule. Every grid is named; none is a default.

Two tensors can be compared byte for byte only when they lie on the same grid, so everything that
changes a stored byte is part of the grid.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch

from mx_quant.formats import E4M3, E5M2, ElementFormat


class ScaleRule(StrEnum):
    """How a block's scale follows from its amax (the largest magnitude in the block)."""

    ROUND_UP = "round_up"
    """E8M0: amax / max rounded up to a power of two. Transformer Engine >= 2.13."""
    ROUND_UP_PRE_2_13 = "round_up_pre_2_13"
    """As ROUND_UP, but elements of a block with scale byte 0 are multiplied by 1.0, not 2^127:
    near-zero blocks flush. Older Transformer Engine, and torchao's RCEIL."""
    ROUND_UP_ZERO_ENDS = "round_up_zero_ends"
    """As ROUND_UP_PRE_2_13, and elements of a block with scale byte 254 (an Inf is in it) are
    multiplied by 0.0, not 2^-127: they flush, and the Inf becomes NaN. Still older Transformer
    Engine."""
    ROUND_UP_ZERO_AS_ONE = "round_up_zero_as_one"
    """As ROUND_UP, but a scale byte 0 is stored as 1: a non-zero block with byte 0 doubles."""
    LOG2_ROUND_UP = "log2_round_up"
    """E8M0: ceil(log2(amax / max)) by a floating log2; NaN elements enter the amax."""
    FLOOR = "floor"
    """E8M0: floor(log2(amax)) - emax, the rule in the text of OCP MX v1.0. Saturates."""
    AMAX_FP32 = "amax_fp32"
    """fp32: amax / max, 1.0 for an all-zero block."""
    AMAX_POW2 = "amax_pow2"
    """fp32: amax / max rounded up to a power of two, 1.0 for an all-zero block. (DeepGEMM's own
    casts raise the amax to at least 1e-4 first, so its blocks below that differ.)"""


_FP32_RULES = frozenset({ScaleRule.AMAX_FP32, ScaleRule.AMAX_POW2})

WHOLE = 2**62
"""Block size along an axis that one block covers whatever its length."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A number grid.

    ``block`` is (rows, columns) of the elements that share a scale, for ``axis=-1``; for
    ``axis=-2`` it is transposed. Grids with E8M0 scales need whole blocks; grids with fp32 scales
    allow a ragged last block.
    """

    id: str
    element: ElementFormat
    block: tuple[int, int]
    rule: ScaleRule

    @property
    def scale_dtype(self) -> torch.dtype:
        """``torch.uint8`` for E8M0 bytes, ``torch.float32`` for fp32 scales."""
        return torch.float32 if self.rule in _FP32_RULES else torch.uint8

    @property
    def zero_scale(self) -> float:
        """The scale of a block of zeros: an E8M0 byte, or 1.0 on grids with fp32 scales."""
        return float(self.rule in _FP32_RULES or self.rule is ScaleRule.ROUND_UP_ZERO_AS_ONE)

    @property
    def ragged(self) -> bool:
        """Whether the last block along an axis may be smaller than ``block``."""
        return self.rule in _FP32_RULES

    def block_for(self, axis: int) -> tuple[int, int]:
        """(rows, columns) of a block when the blocks run along ``axis`` (-1 or -2)."""
        return self.block if axis == -1 else (self.block[1], self.block[0])

    def scale_shape(self, shape: tuple[int, ...], *, axis: int) -> tuple[int, ...]:
        """Shape of the canonical scales of a tensor of ``shape``.

        Raises ValueError when a dimension that the blocks cover is not a multiple of the block
        and the grid is not ragged.
        """
        rows, columns = self.block_for(axis)
        if len(shape) < 2:
            if axis != -1 or rows != 1 or len(shape) != 1:
                raise ValueError(
                    f"shape {shape} has no two last axes for the {rows}x{columns} blocks of grid "
                    f"{self.id!r}; reshape it to at least 2 dimensions"
                )
            return (self._blocks(shape, -1, columns),)
        return (*shape[:-2], self._blocks(shape, -2, rows), self._blocks(shape, -1, columns))

    def _blocks(self, shape: tuple[int, ...], axis: int, size: int) -> int:
        extent = shape[axis]
        if extent % size and not self.ragged:
            raise ValueError(
                f"shape {shape}: axis {axis} has {extent} elements, not a multiple of {size}, the "
                f"block of grid {self.id!r}; pad it with zeros to {-(-extent // size) * size} or "
                "keep this tensor in bf16"
            )
        return -(-extent // size)


MXFP8 = Grid("mxfp8", E4M3, (1, 32), ScaleRule.ROUND_UP)
MXFP8_E5M2 = Grid("mxfp8_e5m2", E5M2, (1, 32), ScaleRule.ROUND_UP)
MXFP8_FLOOR = Grid("mxfp8_floor", E4M3, (1, 32), ScaleRule.FLOOR)
MXFP8_LOG2 = Grid("mxfp8_log2", E4M3, (1, 32), ScaleRule.LOG2_ROUND_UP)
MXFP8_PRE_2_13 = Grid("mxfp8_pre_2_13", E4M3, (1, 32), ScaleRule.ROUND_UP_PRE_2_13)
MXFP8_ZERO_ENDS = Grid("mxfp8_zero_ends", E4M3, (1, 32), ScaleRule.ROUND_UP_ZERO_ENDS)
MXFP8_ZERO_AS_ONE = Grid("mxfp8_zero_as_one", E4M3, (1, 32), ScaleRule.ROUND_UP_ZERO_AS_ONE)
MXFP8_32X32 = Grid("mxfp8_32x32", E4M3, (32, 32), ScaleRule.ROUND_UP)
FP8_BLOCK_128X128 = Grid("fp8_block_128x128", E4M3, (128, 128), ScaleRule.AMAX_FP32)
FP8_BLOCK_1X128 = Grid("fp8_block_1x128", E4M3, (1, 128), ScaleRule.AMAX_FP32)
FP8_BLOCK_128X128_POW2 = Grid("fp8_block_128x128_pow2", E4M3, (128, 128), ScaleRule.AMAX_POW2)
FP8_BLOCK_1X128_POW2 = Grid("fp8_block_1x128_pow2", E4M3, (1, 128), ScaleRule.AMAX_POW2)
FP8_TENSORWISE = Grid("fp8_tensorwise", E4M3, (WHOLE, WHOLE), ScaleRule.AMAX_FP32)
"""One scale for each matrix of the two last axes: current scaling (experts have one each)."""

GRIDS: dict[str, Grid] = {
    grid.id: grid
    for grid in (
        MXFP8,
        MXFP8_E5M2,
        MXFP8_FLOOR,
        MXFP8_LOG2,
        MXFP8_PRE_2_13,
        MXFP8_ZERO_ENDS,
        MXFP8_ZERO_AS_ONE,
        MXFP8_32X32,
        FP8_BLOCK_128X128,
        FP8_BLOCK_1X128,
        FP8_BLOCK_128X128_POW2,
        FP8_BLOCK_1X128_POW2,
        FP8_TENSORWISE,
    )
}


def by_id(grid_id: str) -> Grid:
    """The grid called ``grid_id``. Raises ValueError that lists the known ids."""
    try:
        return GRIDS[grid_id]
    except KeyError:
        known = ", ".join(sorted(GRIDS))
        raise ValueError(f"unknown grid {grid_id!r}; known grids: {known}") from None
