"""Operand: the weight as a GEMM reads it, and the way back to its bytes."""

from __future__ import annotations

import torch
from torch import Tensor

from mx_quant import eager, native
from mx_quant.gemm import Gemm, compute_dtype, native_linear, selected, torch_linear, values
from mx_quant.grids import Grid
from mx_quant.quantize import dequantize
from mx_quant.tensor import MXTensor


def _fits_bf16(w: MXTensor) -> bool:
    """Whether bf16 holds any element with any of the scales of ``w``."""
    if w.scales.dtype != torch.uint8 or not w.scales.numel():
        return False
    element = w.grid.element
    smallest = element.min_exponent - element.mantissa_bits  # exponent of the least subnormal
    low, high = int(w.scales.min()), int(w.scales.max())
    return low - 127 + smallest >= -133 and high - 127 + element.emax <= 127


def _exact_bf16(w: MXTensor) -> Tensor | None:
    """The values of ``w`` in bf16, or None when bf16 cannot hold them all."""
    if _fits_bf16(w):
        return w.dequantize(torch.bfloat16)
    exact = w.dequantize(torch.float32)
    rounded = exact.to(torch.bfloat16)
    same = (rounded.float() == exact) | exact.isnan()
    return rounded if bool(same.all()) else None


class Operand:
    """One GEMM operand, ``[N, K]`` (``[K, N]`` with ``transposed``: the operand of the dgrad).

    The native GEMM reads it packed in panels, as bf16 where bf16 holds every value, else as fp32;
    the torch GEMMs read ``compute_dtype()`` row-major. Either way ``matrix`` and ``read_back``
    are taken from the very memory that the GEMM reads.
    """

    __slots__ = ("_storage", "gemm", "half", "shape", "transposed")

    def __init__(self, shape: tuple[int, int], *, transposed: bool, gemm: Gemm) -> None:
        self.shape = shape
        self.transposed = transposed
        self.gemm = gemm
        self.half = False
        self._storage: Tensor | None = None

    @classmethod
    def from_tensor(cls, w_NK: Tensor, *, transposed: bool = False) -> Operand:
        """The values of a bf16, fp16 or fp32 matrix."""
        operand = cls(_matrix_shape(w_NK), transposed=transposed, gemm=selected())
        operand.load(w_NK)
        return operand

    @classmethod
    def from_mx(cls, w: MXTensor, *, transposed: bool = False) -> Operand:
        """The dequantized values of a matrix on a grid."""
        operand = cls(_matrix_shape(w.elements), transposed=transposed, gemm=selected())
        operand.load(w)
        return operand

    @property
    def outputs(self) -> int:
        """Columns of the result."""
        return self.shape[1] if self.transposed else self.shape[0]

    @property
    def depth(self) -> int:
        """Length of the sums."""
        return self.shape[0] if self.transposed else self.shape[1]

    @property
    def storage(self) -> Tensor:
        """The memory that the GEMM reads."""
        if self._storage is None:
            raise RuntimeError("the operand holds no weight yet; call load first")
        return self._storage

    def load(self, w: MXTensor | Tensor) -> None:
        """Replace the values in place; the memory moves only if bf16 stops or starts to do.

        Raises ValueError when the shape differs.
        """
        if tuple(w.shape) != self.shape:
            raise ValueError(f"operand of shape {self.shape} cannot load shape {tuple(w.shape)}")
        if isinstance(w, MXTensor):
            if self.gemm is Gemm.NATIVE and self._packable(w):
                self._pack_codes(w.contiguous())
                return
            if compute_dtype() == torch.bfloat16 and _fits_bf16(w):
                self.half = True
                dequantize(w, dtype=torch.bfloat16, out=self._reserve(self.shape, torch.bfloat16))
                return
            exact = _exact_bf16(w)
            dense = w.dequantize(torch.float32) if exact is None else exact
        else:
            dense = w.detach()
            dense = dense.float() if dense.dtype == torch.float16 else dense
        dense = dense.contiguous()
        if self.gemm is Gemm.NATIVE:
            self._pack(dense)
        else:
            self._keep(dense)

    def _keep(self, dense: Tensor) -> None:
        narrow = dense.dtype == torch.bfloat16 and compute_dtype() == torch.bfloat16
        self.half = narrow
        target = self._reserve(tuple(dense.shape), torch.bfloat16 if narrow else torch.float32)
        target.copy_(dense)

    def _pack(self, dense: Tensor) -> None:
        self.half = dense.dtype == torch.bfloat16
        lib = native.library()
        nbytes = lib.mx_packed_bytes(self.outputs, self.depth, int(self.half))
        target = self._reserve((nbytes,), torch.uint8)
        lib.mx_pack(
            dense.data_ptr(),
            native.KINDS[dense.dtype],
            self.outputs,
            self.depth,
            int(self.transposed),
            int(self.half),
            target.data_ptr(),
            torch.get_num_threads(),
        )

    def _packable(self, w: MXTensor) -> bool:
        along = -2 if self.transposed else -1
        return native.supports_grid(w.grid) and w.axis == along and _fits_bf16(w)

    def _pack_codes(self, w: MXTensor) -> None:
        self.half = True
        lib = native.library()
        target = self._reserve((lib.mx_packed_bytes(self.outputs, self.depth, 1),), torch.uint8)
        lib.mx_pack_codes(
            w.elements.data_ptr(),
            w.scales.data_ptr(),
            self.outputs,
            self.depth,
            native.codes(w.grid)[0],
            int(self.transposed),
            target.data_ptr(),
            torch.get_num_threads(),
        )

    def _reserve(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        held = self._storage
        if held is None or tuple(held.shape) != shape or held.dtype != dtype:
            self._storage = held = torch.empty(shape, dtype=dtype)
        return held

    def values(self, dtype: torch.dtype) -> Tensor:
        """What the GEMM reads, row-major in ``shape``, as bf16 or fp32."""
        if self.gemm is not Gemm.NATIVE:
            return self.storage.to(dtype)
        out = torch.empty(self.shape, dtype=dtype)
        native.library().mx_unpack(
            self.storage.data_ptr(),
            self.outputs,
            self.depth,
            int(self.transposed),
            int(self.half),
            out.data_ptr(),
            native.KINDS[dtype],
            torch.get_num_threads(),
        )
        return out

    @property
    def matrix(self) -> Tensor:
        """What the GEMM reads, row-major in ``compute_dtype()``; a copy for the native GEMM."""
        return self.values(compute_dtype())

    def apply(self, x_MK: Tensor, *, grid: Grid | None) -> Tensor:
        """``values(x)`` times the operand, ``[M, outputs]`` in ``x.dtype``."""
        if x_MK.ndim != 2 or x_MK.shape[1] != self.depth:
            raise ValueError(
                f"activations of shape {tuple(x_MK.shape)} do not fit an operand of depth "
                f"{self.depth} (weight {self.shape}, transposed={self.transposed})"
            )
        if x_MK.dtype not in native.KINDS:
            raise ValueError(f"activations are {x_MK.dtype}: expected bf16, fp16 or fp32")
        if grid is not None:
            grid.scale_shape(tuple(x_MK.shape), axis=-1)
        if x_MK.shape[0] == 0:
            return x_MK.new_empty(0, self.outputs)
        if self.gemm is Gemm.NATIVE:
            return native_linear(
                x_MK, self.storage, outputs=self.outputs, half=self.half, grid=grid
            )
        matrix = self.storage.t() if self.transposed else self.storage
        x_MK, dtype = values(x_MK, grid, axis=-1, dtype=matrix.dtype), x_MK.dtype
        return torch_linear(x_MK, matrix, gemm=self.gemm).to(dtype)

    def read_back(self, *, grid: Grid, scales: Tensor) -> MXTensor:
        """Canonical rowwise bytes of what the GEMM reads, given the scales.

        Exact: every value is re-encoded and decoded again. Raises ValueError with the number of
        values that are not on the grid with these scales.
        """
        expected = grid.scale_shape(self.shape, axis=-1)
        if tuple(scales.shape) != expected or scales.dtype != grid.scale_dtype:
            raise ValueError(
                f"scales {tuple(scales.shape)} {scales.dtype} do not belong to an operand of shape "
                f"{self.shape} on grid {grid.id!r}: expected {expected} {grid.scale_dtype}"
            )
        t, off_grid = self._encode(grid, scales.contiguous())
        if off_grid:
            raise ValueError(
                f"{off_grid} of {self.shape[0] * self.shape[1]} values that the GEMM reads are not "
                f"on grid {grid.id!r} with the given scales: the operand was not loaded from these "
                "bytes, or its memory was overwritten; load the weight again"
            )
        return t

    def _encode(self, grid: Grid, scales: Tensor) -> tuple[MXTensor, int]:
        known = native.available() and native.supports_grid(grid)
        if known and self.gemm is Gemm.NATIVE and self.half and not self.transposed:
            codes = torch.empty(self.shape, dtype=torch.uint8)
            off_grid = native.library().mx_read_back(
                self.storage.data_ptr(),
                scales.data_ptr(),
                *self.shape,
                native.codes(grid)[0],
                codes.data_ptr(),
                torch.get_num_threads(),
            )
            return MXTensor.from_bytes(codes, scales, grid=grid), int(off_grid)
        dense = self.values(torch.bfloat16 if self.half else torch.float32)
        if known:
            return native.encode(dense, scales, grid=grid)
        return eager.encode(dense, scales, grid=grid)

    def read_back_bf16(self) -> Tensor:
        """What the GEMM reads, as bf16. Raises ValueError when bf16 does not hold the values."""
        dense = self.values(torch.bfloat16)
        if not self.half:
            exact = self.values(torch.float32)
            off = int(((dense.float() != exact) & ~exact.isnan()).sum())
            if off:
                raise ValueError(f"{off} of {exact.numel()} values are not bf16 values")
        return dense


def _matrix_shape(w: Tensor) -> tuple[int, int]:
    if w.ndim != 2:
        raise ValueError(f"a GEMM operand is a matrix; got shape {tuple(w.shape)}")
    return int(w.shape[0]), int(w.shape[1])
