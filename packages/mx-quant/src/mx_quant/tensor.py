"""MXTensor: elements, scales and the grid they lie on, in the canonical layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mx_quant.grids import Grid


def normalize_axis(axis: int, ndim: int) -> int:
    """``axis`` as -1 or -2. Raises ValueError for any other axis."""
    negative = axis - ndim if axis >= 0 else axis
    if negative not in (-1, -2) or negative < -ndim:
        raise ValueError(
            f"axis {axis} of a {ndim}-dimensional tensor: blocks run along the last axis (-1, "
            "rowwise) or the one before it (-2, columnwise)"
        )
    return negative


@dataclass(frozen=True, slots=True, eq=False)
class MXTensor:
    """A quantized tensor in canonical form: row-major, unpadded, unswizzled.

    ``elements``: float8 ``[..., N, K]``. ``scales``: ``[..., N, K/32]`` uint8 for MXFP8 rowwise
    (``axis=-1``), ``[..., N/32, K]`` columnwise (``axis=-2``), per ``grid.scale_shape`` otherwise.
    The represented value is ``element * 2**(scale - 127)`` (E8M0) or ``element * scale`` (fp32).

    Raises ValueError when shapes, dtypes or devices do not agree.
    """

    elements: Tensor
    scales: Tensor
    grid: Grid
    axis: int = -1

    def __post_init__(self) -> None:
        object.__setattr__(self, "axis", normalize_axis(self.axis, self.elements.ndim))
        grid = self.grid
        shape = tuple(self.elements.shape)
        expected = grid.scale_shape(shape, axis=self.axis)
        problems = []
        if self.elements.dtype != grid.element.torch_dtype:
            problems.append(f"elements are {self.elements.dtype}, not {grid.element.torch_dtype}")
        if self.scales.dtype != grid.scale_dtype:
            problems.append(f"scales are {self.scales.dtype}, not {grid.scale_dtype}")
        if tuple(self.scales.shape) != expected:
            problems.append(
                f"scales have shape {tuple(self.scales.shape)}, not {expected} "
                f"(elements {shape}, axis {self.axis})"
            )
        if self.elements.device != self.scales.device:
            problems.append(f"elements on {self.elements.device}, scales on {self.scales.device}")
        if problems:
            raise ValueError(f"not a tensor on grid {grid.id!r}: " + "; ".join(problems))

    @property
    def shape(self) -> torch.Size:
        """Shape of the elements, which is the shape of the represented tensor."""
        return self.elements.shape

    @property
    def nbytes(self) -> int:
        """Bytes of elements and scales together."""
        return self.elements.nbytes + self.scales.nbytes

    @property
    def element_bytes(self) -> Tensor:
        """The elements as uint8, sharing memory (float8 tensors cannot be pickled)."""
        return self.elements.view(torch.uint8)

    @property
    def scale_bytes(self) -> Tensor:
        """The scales as uint8, sharing memory; fp32 scales become 4 bytes on the last axis."""
        return self.scales.view(torch.uint8)

    @classmethod
    def from_bytes(
        cls, elements: Tensor, scales: Tensor, *, grid: Grid, axis: int = -1
    ) -> MXTensor:
        """The inverse of ``element_bytes`` and ``scale_bytes``; shares memory."""
        return cls(
            elements.view(grid.element.torch_dtype), scales.view(grid.scale_dtype), grid, axis
        )

    def contiguous(self) -> MXTensor:
        """The same tensor with row-major elements and scales; no copy if they already are."""
        if self.elements.is_contiguous() and self.scales.is_contiguous():
            return self
        return MXTensor(self.elements.contiguous(), self.scales.contiguous(), self.grid, self.axis)

    def clone(self) -> MXTensor:
        """A copy in its own memory."""
        return MXTensor(
            self.element_bytes.clone().view(self.elements.dtype),
            self.scales.clone(),
            self.grid,
            self.axis,
        )

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        """The represented values, rounded once to ``dtype`` (bf16 or fp32)."""
        from mx_quant.quantize import dequantize

        return dequantize(self, dtype=dtype)

    def rows(self, start: int, stop: int) -> MXTensor:
        """Rows ``start:stop`` of axis -2, as views.

        Raises ValueError when the cut does not fall between blocks or leaves the tensor.
        """
        size = self.grid.block_for(self.axis)[0]
        total = self.elements.shape[-2] if self.elements.ndim > 1 else 0
        if not 0 <= start < stop <= total:
            raise ValueError(f"rows {start}:{stop} of a tensor with {total} rows")
        if start % size or (stop % size and stop != total):
            raise ValueError(
                f"rows {start}:{stop} cut through blocks of {size} rows (grid {self.grid.id!r}, "
                f"axis {self.axis}); cut at multiples of {size}"
            )
        return MXTensor(
            self.elements[..., start:stop, :],
            self.scales[..., start // size : -(-stop // size), :],
            self.grid,
            self.axis,
        )


def cat_rows(parts: Sequence[MXTensor]) -> MXTensor:
    """Parts stacked along axis -2 (QKV and gate/up fusion, row shards), in new memory.

    Raises ValueError for no parts, different grids or axes, or a ragged part before the last.
    """
    if not parts:
        raise ValueError("cat_rows needs at least one part")
    first = parts[0]
    size = first.grid.block_for(first.axis)[0]
    for index, part in enumerate(parts):
        if part.grid != first.grid or part.axis != first.axis:
            raise ValueError(
                f"part {index} lies on grid {part.grid.id!r} axis {part.axis}, part 0 on grid "
                f"{first.grid.id!r} axis {first.axis}; quantize them alike first"
            )
        if index < len(parts) - 1 and part.shape[-2] % size:
            raise ValueError(
                f"part {index} has {part.shape[-2]} rows, not a multiple of the {size} rows of a "
                "block; only the last part may be ragged"
            )
    return MXTensor(
        torch.cat([part.element_bytes for part in parts], dim=-2).view(first.elements.dtype),
        torch.cat([part.scales for part in parts], dim=-2),
        first.grid,
        first.axis,
    )
