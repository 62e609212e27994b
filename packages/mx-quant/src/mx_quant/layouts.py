"""Where other libraries keep scale bytes, and the way back from each: no arithmetic, no loss.

Canonical scales are row-major, unpadded and unswizzled. Every layout here has its inverse, because
a read-back must return what was sent. Scales are E8M0 bytes (uint8); R rows and C columns are those
of the scale matrix, not of the elements. Padding is written as byte 0 and never read.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mx_quant.grids import Grid
from mx_quant.tensor import MXTensor, normalize_axis

CUBLAS_TILE = (128, 4)
FLASHINFER_SMALL_TILE = (8, 4)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def _check_bytes(scales: Tensor, *, least_dimensions: int) -> None:
    if scales.dtype != torch.uint8 or scales.ndim < least_dimensions:
        raise ValueError(
            f"scales are {scales.dtype} of shape {tuple(scales.shape)}; expected E8M0 bytes "
            f"(uint8) with at least {least_dimensions} dimension(s)"
        )


def _padded(scales_RC: Tensor, rows: int, columns: int) -> Tensor:
    if tuple(scales_RC.shape[-2:]) == (rows, columns):
        return scales_RC
    out = scales_RC.new_zeros(*scales_RC.shape[:-2], rows, columns)
    out[..., : scales_RC.shape[-2], : scales_RC.shape[-1]] = scales_RC
    return out


# Transformer Engine


def _te_shape(shape: tuple[int, int], axis: int) -> tuple[int, int]:
    rows, columns = shape
    if axis == -1:
        return _round_up(rows, 128), _round_up(columns, 4)
    return _round_up(rows, 4), _round_up(columns, 128)


def te_scales(t: MXTensor) -> Tensor:
    """Scales as an ``MXFP8Tensor`` holds them: leading axes flattened, padded.

    Rowwise ``[roundup(M, 128), roundup(K/32, 4)]``, columnwise ``[roundup(M/32, 4),
    roundup(K, 128)]``, where M is the product of all axes but the last.
    Source: ``MXFP8Quantizer.get_scale_shape`` of Transformer Engine 2.13 to 2.20.
    """
    _check_bytes(t.scales, least_dimensions=1)
    flat = t.scales.reshape(-1, t.scales.shape[-1])
    return _padded(flat, *_te_shape((flat.shape[0], flat.shape[1]), t.axis))


def from_te(elements: Tensor, scales: Tensor, *, grid: Grid, axis: int = -1) -> MXTensor:
    """The inverse of ``te_scales``: canonical tensor from TE's data and padded scale buffer.

    ``elements`` (uint8 or float8, any rank) are viewed, ``scales`` cropped into new memory if they
    are padded: TE leaves the padding uninitialised. Raises ValueError when the buffer is not of the
    shape that TE gives a tensor of this shape, which is how swizzled or foreign scales show.
    """
    axis = normalize_axis(axis, elements.ndim)
    _check_bytes(scales, least_dimensions=2)
    shape = grid.scale_shape(tuple(elements.shape), axis=axis)
    rows, columns = 1, shape[-1]
    for extent in shape[:-1]:
        rows *= extent
    padded = _te_shape((rows, columns), axis)
    if tuple(scales.shape) not in ((rows, columns), padded):
        raise ValueError(
            f"scale buffer of shape {tuple(scales.shape)} for elements {tuple(elements.shape)} on "
            f"grid {grid.id!r} axis {axis}: expected {padded} or, unpadded, {(rows, columns)}"
        )
    cropped = scales[:rows, :columns].contiguous().reshape(shape)
    return MXTensor.from_bytes(elements.view(torch.uint8), cropped, grid=grid, axis=axis)


# cuBLAS, CUTLASS, cuDNN, FlashInfer


def swizzle(scales_RC: Tensor, *, tile: tuple[int, int] = CUBLAS_TILE) -> Tensor:
    """``[..., R, C]`` as tiles for the tensor cores, ``[..., roundup(R, t0) * roundup(C, 4)]``.

    ``tile=(128, 4)``: byte ``(r % 32) * 16 + (r // 32) * 4 + c`` of each 512-byte tile, tiles
    row-major: cuBLAS's VEC32_UE8M0, FlashInfer's ``layout_128x4``. ``tile=(8, 4)``: byte
    ``r * 4 + c`` of each 32-byte tile: FlashInfer's ``layout_8x4``.
    Sources: cuBLAS 12.9, "1D block scaling factors layout"; FlashInfer, ``SfLayout``.
    Raises ValueError for another tile or dtype.
    """
    _check_bytes(scales_RC, least_dimensions=2)
    rows, columns = _tile_shape(tuple(scales_RC.shape[-2:]), tile)
    padded = _padded(scales_RC, rows, columns)
    lead = padded.shape[:-2]
    if tile == CUBLAS_TILE:
        view = padded.reshape(-1, rows // 128, 4, 32, columns // 4, 4).permute(0, 1, 4, 3, 2, 5)
    else:
        view = padded.reshape(-1, rows // 8, 8, columns // 4, 4).permute(0, 1, 3, 2, 4)
    return view.reshape(*lead, rows * columns)


def unswizzle(
    swizzled: Tensor, *, rows: int, columns: int, tile: tuple[int, int] = CUBLAS_TILE
) -> Tensor:
    """The inverse of ``swizzle``: canonical ``[..., rows, columns]`` in new memory.

    Raises ValueError when the last axis has not the length that ``swizzle`` gives it.
    """
    _check_bytes(swizzled, least_dimensions=1)
    padded_rows, padded_columns = _tile_shape((rows, columns), tile)
    if swizzled.shape[-1] != padded_rows * padded_columns:
        raise ValueError(
            f"{swizzled.shape[-1]} swizzled bytes do not hold {rows} x {columns} scales in "
            f"{tile[0]}x{tile[1]} tiles: expected {padded_rows * padded_columns}"
        )
    lead = swizzled.shape[:-1]
    if tile == CUBLAS_TILE:
        view = swizzled.reshape(-1, padded_rows // 128, padded_columns // 4, 32, 4, 4)
        view = view.permute(0, 1, 4, 3, 2, 5)
    else:
        view = swizzled.reshape(-1, padded_rows // 8, padded_columns // 4, 8, 4)
        view = view.permute(0, 1, 3, 2, 4)
    return view.reshape(*lead, padded_rows, padded_columns)[..., :rows, :columns].contiguous()


def _tile_shape(shape: tuple[int, ...], tile: tuple[int, int]) -> tuple[int, int]:
    if tile not in (CUBLAS_TILE, FLASHINFER_SMALL_TILE):
        raise ValueError(f"tile {tile}: expected {CUBLAS_TILE} or {FLASHINFER_SMALL_TILE}")
    return _round_up(shape[-2], tile[0]), _round_up(shape[-1], tile[1])


def gemm_scales(t: MXTensor) -> Tensor:
    """Swizzled scales as a GEMM reads them: K runs along the columns whatever the axis.

    Rowwise scales ``[..., N, K/32]`` are swizzled as they are; columnwise scales ``[..., N/32, K]``
    belong to an operand whose K is N, so ``[..., K, N/32]`` is swizzled.
    """
    _check_bytes(t.scales, least_dimensions=2)
    return swizzle(t.scales if t.axis == -1 else t.scales.transpose(-2, -1))


def from_gemm(elements: Tensor, swizzled: Tensor, *, grid: Grid, axis: int = -1) -> MXTensor:
    """The inverse of ``gemm_scales``. Raises ValueError when the sizes do not agree."""
    axis = normalize_axis(axis, elements.ndim)
    shape = grid.scale_shape(tuple(elements.shape), axis=axis)
    if axis == -1:
        scales = unswizzle(swizzled, rows=shape[-2], columns=shape[-1])
    else:
        scales = unswizzle(swizzled, rows=shape[-1], columns=shape[-2])
        scales = scales.transpose(-2, -1).contiguous()
    return MXTensor.from_bytes(elements.view(torch.uint8), scales, grid=grid, axis=axis)


def shuffle_rows(x_NK: Tensor, *, block: int = 32) -> Tensor:
    """Rows reordered for TensorRT-LLM's transposed epilogue: row r of each block of 16 (or 32)
    goes to ``(r % 2) * 8 + r // 2`` (``(r % 4) * 8 + r // 4``). New memory, any dtype.

    Source: FlashInfer, ``shuffle_matrix_a``; 32 where its ``epilogue_tile_m`` is a multiple of 128,
    else 16. Raises ValueError when the rows are not whole blocks.
    """
    return _reorder(x_NK, (8, _ways(x_NK, block)))


def unshuffle_rows(x_NK: Tensor, *, block: int = 32) -> Tensor:
    """The inverse of ``shuffle_rows``."""
    return _reorder(x_NK, (_ways(x_NK, block), 8))


def _ways(x_NK: Tensor, block: int) -> int:
    if block not in (16, 32):
        raise ValueError(f"shuffle block {block}: expected 16 or 32")
    if x_NK.ndim < 2 or x_NK.shape[-2] % block:
        raise ValueError(f"{tuple(x_NK.shape)} has no whole blocks of {block} rows to shuffle")
    return block // 8


def _reorder(x_NK: Tensor, view: tuple[int, int]) -> Tensor:
    raw = x_NK.view(torch.uint8) if x_NK.dtype.itemsize == 1 else x_NK
    blocks = raw.reshape(*raw.shape[:-2], -1, *view, raw.shape[-1])
    return blocks.transpose(-3, -2).reshape(raw.shape).view(x_NK.dtype)


# DeepGEMM


def pack_deepgemm(scales_RC: Tensor) -> Tensor:
    """``[..., R, C]`` as DeepGEMM reads them on SM100: int32 ``[..., R, ceil(C/4)]``.

    Four bytes along K in one little-endian word; words lie column-major, each column padded to a
    multiple of 4 words (16 bytes, for TMA). For weight blocks of several rows, repeat the rows
    first. Source: DeepGEMM, ``get_mn_major_tma_aligned_packed_ue8m0_tensor``.
    """
    _check_bytes(scales_RC, least_dimensions=2)
    rows, columns = scales_RC.shape[-2:]
    tall, words = _round_up(rows, 4), -(-columns // 4)
    padded = _padded(scales_RC, tall, words * 4).contiguous().view(torch.int32)
    memory = padded.new_empty(*scales_RC.shape[:-2], words, tall)
    memory.copy_(padded.transpose(-2, -1))
    return memory.transpose(-2, -1)[..., :rows, :]


def unpack_deepgemm(packed: Tensor, *, columns: int) -> Tensor:
    """The inverse of ``pack_deepgemm``: canonical ``[..., R, columns]``, whatever the strides.

    Raises ValueError for another dtype or a number of words that does not fit ``columns``.
    """
    if packed.dtype != torch.int32 or packed.ndim < 2 or packed.shape[-1] != -(-columns // 4):
        raise ValueError(
            f"packed scales are {packed.dtype} of shape {tuple(packed.shape)}; expected int32 with "
            f"{-(-columns // 4)} words for {columns} columns"
        )
    # contiguous() would keep the column stride where there is one word only.
    words = torch.empty(packed.shape, dtype=packed.dtype, device=packed.device).copy_(packed)
    return words.view(torch.uint8)[..., :columns].contiguous()
