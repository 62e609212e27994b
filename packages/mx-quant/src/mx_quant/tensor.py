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
    def device(self) -> torch.device:
        """Where elements and scales are."""
        return self.elements.device

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
        """Rows ``start:stop`` (axis -2), as views: QKV and gate/up parts, column-parallel shards.

        Raises ValueError when the cut does not fall between blocks or leaves the tensor.
        """
        return self._cut(-2, start, stop)

    def columns(self, start: int, stop: int) -> MXTensor:
        """Columns ``start:stop`` (axis -1, K), as views: row-parallel shards.

        Raises ValueError when the cut does not fall between blocks or leaves the tensor.
        """
        return self._cut(-1, start, stop)

    def _cut(self, along: int, start: int, stop: int) -> MXTensor:
        what = _NAMES[along]
        size = self.grid.block_for(self.axis)[along]
        total = self.elements.shape[along] if self.elements.ndim >= -along else 0
        if not 0 <= start < stop <= total:
            raise ValueError(f"{what} {start}:{stop} of a tensor with {total} {what}")
        if start % size or (stop % size and stop != total):
            raise ValueError(
                f"{what} {start}:{stop} cut through blocks of {size} {what} (grid "
                f"{self.grid.id!r}, axis {self.axis}); cut at multiples of {size}"
            )
        first, last = start // size, -(-stop // size)
        return MXTensor(
            self.elements.narrow(along, start, stop - start),
            self.scales.narrow(along, first, last - first),
            self.grid,
            self.axis,
        )

    def pad(self, rows: int, columns: int) -> MXTensor:
        """Grown with zeros to ``rows`` x ``columns`` in new memory (self if it has that size).

        The new blocks hold what quantizing zeros gives, so this equals the quantization of the
        padded tensor. Raises ValueError when the tensor is larger or a dimension not whole blocks.
        """
        shape = self._resized(rows, columns)
        if shape == tuple(self.shape):
            return self
        if any(new < old for new, old in zip(shape, self.shape, strict=True)):
            raise ValueError(f"cannot pad {tuple(self.shape)} to {shape}; crop makes it smaller")
        grid = self.grid
        codes = self.element_bytes.new_zeros(shape)
        scales = self.scales.new_full(grid.scale_shape(shape, axis=self.axis), grid.zero_scale)
        codes[..., : self.shape[-2], : self.shape[-1]] = self.element_bytes
        scales[..., : self.scales.shape[-2], : self.scales.shape[-1]] = self.scales
        return MXTensor.from_bytes(codes, scales, grid=grid, axis=self.axis)

    def crop(self, rows: int, columns: int) -> MXTensor:
        """The first ``rows`` x ``columns``, as views: the inverse of ``pad``.

        Raises ValueError when the tensor is smaller or the cut does not fall between blocks; a
        grid with ragged blocks may be cut anywhere, and a cut block keeps its scale.
        """
        shape = self._resized(rows, columns)
        if any(new > old for new, old in zip(shape, self.shape, strict=True)):
            raise ValueError(f"cannot crop {tuple(self.shape)} to {shape}; pad makes it larger")
        extents = self.grid.scale_shape(shape, axis=self.axis)
        return MXTensor(
            self.elements[..., :rows, :columns],
            self.scales[..., : extents[-2], : extents[-1]],
            self.grid,
            self.axis,
        )

    def _resized(self, rows: int, columns: int) -> tuple[int, ...]:
        if self.elements.ndim < 2 or rows < 1 or columns < 1:
            raise ValueError(
                f"cannot resize {tuple(self.shape)} to {rows} rows and {columns} columns: needs at "
                "least 2 dimensions and at least one row and column"
            )
        return (*self.shape[:-2], rows, columns)


_NAMES = {-2: "rows", -1: "columns"}


def cat_rows(parts: Sequence[MXTensor]) -> MXTensor:
    """Parts stacked along axis -2 (QKV and gate/up fusion, row shards), in new memory.

    Raises ValueError for no parts, different grids or axes, or a ragged part before the last.
    """
    return _cat(parts, -2)


def cat_columns(parts: Sequence[MXTensor]) -> MXTensor:
    """Parts side by side along axis -1 (K: the shards of a row-parallel layer), in new memory.

    Raises ValueError for no parts, different grids or axes, or a ragged part before the last.
    """
    return _cat(parts, -1)


def _cat(parts: Sequence[MXTensor], along: int) -> MXTensor:
    what = _NAMES[along]
    if not parts:
        raise ValueError(f"cat_{what} needs at least one part")
    first = parts[0]
    size = first.grid.block_for(first.axis)[along]
    for index, part in enumerate(parts):
        if part.grid != first.grid or part.axis != first.axis:
            raise ValueError(
                f"part {index} lies on grid {part.grid.id!r} axis {part.axis}, part 0 on grid "
                f"{first.grid.id!r} axis {first.axis}; quantize them alike first"
            )
        if part.elements.ndim < -along:
            raise ValueError(f"part {index} of shape {tuple(part.shape)} has no {what}")
        if index < len(parts) - 1 and part.shape[along] % size:
            raise ValueError(
                f"part {index} has {part.shape[along]} {what}, not a multiple of the {size} {what} "
                "of a block; only the last part may be ragged"
            )
    return MXTensor(
        torch.cat([part.element_bytes for part in parts], dim=along).view(first.elements.dtype),
        torch.cat([part.scales for part in parts], dim=along),
        first.grid,
        first.axis,
    )
