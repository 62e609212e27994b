"""Which GEMM the emulated linear layer runs on, and the two calls it needs.

``native`` (the C kernel) is bitwise independent of the number of rows, the position of a row, the
thread count and the instruction set. ``torch-bf16`` is taken instead where the CPU multiplies bf16
in hardware, because it is several times faster there. ``torch-fp32`` serves where the kernel was
not built: it runs in tiles of a fixed number of rows, since a library may pick another kernel, with
another summation order, for another number of rows.
"""

from __future__ import annotations

import functools
from enum import StrEnum

import torch
from torch import Tensor

from mx_quant import native
from mx_quant.grids import Grid
from mx_quant.quantize import fake_quantize

TILE_ROWS = 64


class Gemm(StrEnum):
    """The GEMM implementations."""

    NATIVE = "native"
    TORCH_BF16 = "torch-bf16"
    TORCH_FP32 = "torch-fp32"


@functools.cache
def selected() -> Gemm:
    """The GEMM of this process: the same in every process on one machine and installation."""
    if torch.ops.mkldnn._is_mkldnn_bf16_supported() and (
        torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    ):
        return Gemm.TORCH_BF16
    return Gemm.NATIVE if native.available() else Gemm.TORCH_FP32


def compute_dtype() -> torch.dtype:
    """dtype of the operands: bf16 where the CPU has bf16 arithmetic, else fp32.

    The values are the same either way (a bf16 value is an fp32 value), products are accumulated in
    fp32 and the result is rounded once.
    """
    return torch.bfloat16 if selected() is Gemm.TORCH_BF16 else torch.float32


def values(x: Tensor, grid: Grid | None, *, axis: int, dtype: torch.dtype) -> Tensor:
    """``x`` as the GEMM reads it: fake-quantized when ``grid`` is given, in ``dtype``."""
    return x.to(dtype) if grid is None else fake_quantize(x, grid=grid, axis=axis, dtype=dtype)


def torch_linear(x_MK: Tensor, matrix_NK: Tensor, *, gemm: Gemm) -> Tensor:
    """``x @ matrix.T`` in ``matrix.dtype`` by torch, bitwise independent of the number of rows."""
    rows = x_MK.shape[0]
    if gemm is Gemm.TORCH_BF16:
        # oneDNN takes a matrix-vector kernel with another summation order for a single row.
        padded = torch.nn.functional.pad(x_MK, (0, 0, 0, 1)) if rows == 1 else x_MK
        return torch.nn.functional.linear(padded, matrix_NK)[:rows]
    padded = torch.nn.functional.pad(x_MK, (0, 0, 0, -rows % TILE_ROWS))
    tiles = [torch.nn.functional.linear(tile, matrix_NK) for tile in padded.split(TILE_ROWS)]
    return torch.cat(tiles)[:rows]


def native_linear(
    x_MK: Tensor, packed: Tensor, *, outputs: int, half: bool, grid: Grid | None
) -> Tensor:
    """``values(x) @ B`` in ``x.dtype`` with B packed; the C kernel quantizes x on the way in."""
    dtype = x_MK.dtype
    if grid is not None and not native.supports_grid(grid):
        x_MK, grid = fake_quantize(x_MK, grid=grid, dtype=torch.float32), None
    x_MK = x_MK.contiguous()
    rows, depth = x_MK.shape
    y = torch.empty(rows, outputs, dtype=dtype)
    failed = native.library().mx_linear(
        x_MK.data_ptr(),
        native.KINDS[x_MK.dtype],
        rows,
        depth,
        *native.codes(grid),
        packed.data_ptr(),
        int(half),
        outputs,
        y.data_ptr(),
        native.KINDS[y.dtype],
        torch.get_num_threads(),
    )
    if failed:
        raise MemoryError(f"no memory for the activations of a {rows} x {depth} linear layer")
    return y


def _fusable(x: Tensor, dy: Tensor, grid: Grid | None, grad_grid: Grid | None) -> bool:
    if not {x.dtype, dy.dtype} <= native.KINDS.keys():
        return False
    grids = [g for g in (grid, grad_grid) if g is not None]
    return len({g.rule for g in grids}) <= 1 and all(native.supports_grid(g) for g in grids)


def weight_gradient(
    dy_TN: Tensor, x_TK: Tensor, *, grid: Grid | None, grad_grid: Grid | None, dtype: torch.dtype
) -> Tensor:
    """``values(dy).T @ values(x)`` in ``dtype``, ``[N, K]``.

    Both operands are quantized columnwise, along the tokens, which are padded to a multiple of 32
    with zeros.
    """
    tokens, outputs, inputs = dy_TN.shape[0], dy_TN.shape[1], x_TK.shape[1]
    gemm = selected()
    if gemm is Gemm.NATIVE and dtype in native.KINDS and _fusable(x_TK, dy_TN, grid, grad_grid):
        dy_TN, x_TK = dy_TN.contiguous(), x_TK.contiguous()
        dw = torch.empty(outputs, inputs, dtype=dtype)
        failed = native.library().mx_wgrad(
            dy_TN.data_ptr(),
            native.KINDS[dy_TN.dtype],
            native.codes(grad_grid)[0],
            x_TK.data_ptr(),
            native.KINDS[x_TK.dtype],
            native.codes(grid)[0],
            native.codes(grid or grad_grid)[1],
            tokens,
            outputs,
            inputs,
            dw.data_ptr(),
            native.KINDS[dtype],
            torch.get_num_threads(),
        )
        if failed:
            raise MemoryError(f"no memory for the weight gradient of {tokens} tokens")
        return dw
    padding = (0, 0, 0, -tokens % 32)
    compute = compute_dtype()
    dy_TN = values(torch.nn.functional.pad(dy_TN, padding), grad_grid, axis=-2, dtype=compute)
    x_TK = values(torch.nn.functional.pad(x_TK, padding), grid, axis=-2, dtype=compute)
    return (dy_TN.t() @ x_TK).to(dtype)
