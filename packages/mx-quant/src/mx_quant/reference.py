"""The specification: quantization and dequantization in integer bit arithmetic.

Every fast path equals this module byte for byte. Inputs are bf16, fp16 or fp32 and are widened to
fp32, which is exact. Names: ``amax`` is the largest magnitude of a block; ``v`` is amax / max of
the element format; a *field* is the 8-bit exponent field of an fp32 number. ``_B`` marks tensors
with one entry per block, broadcastable against the blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mx_quant.formats import ElementFormat
from mx_quant.grids import Grid, ScaleRule
from mx_quant.tensor import MXTensor, normalize_axis

_MANTISSA = 0x7FFFFF  # mantissa field of fp32
_INF = 0x7F800000  # bits of +Inf; larger magnitudes are NaN


def _bits(x: Tensor) -> Tensor:
    """The fp32 bit patterns of ``x`` as int64, 0 <= bits < 2**32."""
    return x.contiguous().view(torch.int32).to(torch.int64) & 0xFFFFFFFF


def _float(bits: Tensor) -> Tensor:
    """fp32 numbers from bit patterns; the inverse of ``_bits``."""
    return bits.to(torch.int32).view(torch.float32)


def round_up_byte(v_B: Tensor) -> Tensor:
    """E8M0 byte of the smallest power of two >= v, as int64.

    Zero and v <= 2^-127 give 0; Inf gives 0xFE; NaN gives 0xFF.
    Source: the conversion ``cvt.rp.satfinite.ue8m0`` of PTX.
    """
    bits = _bits(v_B)
    field, mantissa = bits >> 23, bits & _MANTISSA
    # 2^-127 is the subnormal with mantissa 0x400000; a larger subnormal rounds up to 2^-126.
    up = torch.where(field == 0, mantissa > 0x400000, mantissa > 0)
    byte = (field + up).clamp(max=0xFE)
    return torch.where(bits > _INF, 0xFF, byte)


def floor_byte(amax_B: Tensor, element: ElementFormat) -> Tensor:
    """E8M0 byte of 2^(floor(log2(amax)) - emax); Inf counts as the largest finite amax."""
    return ((_bits(amax_B) >> 23).clamp(max=0xFE) - element.emax).clamp(min=0)


def log2_byte(amax_B: Tensor, element: ElementFormat) -> Tensor:
    """E8M0 byte of 2^ceil(log2(amax / max)) by fp32 log2; Inf gives 0xFE, NaN 0xFF."""
    power = torch.ceil(torch.log2(amax_B / element.max)) + 127
    return power.clamp(0, 0xFE).nan_to_num(nan=255.0).to(torch.int64)


def decode_scale(byte: Tensor) -> Tensor:
    """fp32 value 2^(byte - 127) of E8M0 bytes; byte 0 is subnormal, byte 255 is NaN."""
    field = byte.to(torch.int64)
    bits = torch.where(field == 0, 0x00400000, field << 23)
    return _float(torch.where(field == 255, 0x7FC00000, bits))


def reciprocal(byte_B: Tensor, rule: ScaleRule) -> Tensor:
    """The fp32 factor r that elements are multiplied by, for E8M0 byte ``byte_B`` (int64)."""
    bits = torch.where(byte_B == 254, 0x00400000, (254 - byte_B).clamp(min=0) << 23)
    bits = torch.where(byte_B == 255, 0x7FC00000, bits)
    if rule in (ScaleRule.ROUND_UP_PRE_2_13, ScaleRule.ROUND_UP_ZERO_ENDS):
        bits = torch.where(byte_B == 0, 0x3F800000, bits)
    if rule is ScaleRule.ROUND_UP_ZERO_ENDS:
        bits = torch.where(byte_B == 254, 0, bits)
    return _float(bits)


def round_element(y: Tensor, element: ElementFormat) -> Tensor:
    """fp32 to element bytes (uint8): nearest, ties to even, saturating; NaN -> ``nan_byte``."""
    bits = _bits(y)
    sign, magnitude = bits >> 31, bits & 0x7FFFFFFF
    largest = _bits(torch.tensor([element.max]))
    clamped = torch.minimum(magnitude, largest.to(y.device))
    drop = 23 - element.mantissa_bits
    exponent = (clamped >> 23) - 127
    # Below the smallest normal element the significand shifts further; past 40 nothing is left.
    shift = (drop + (element.min_exponent - exponent).clamp(min=0)).clamp(max=40)
    significand = (clamped & _MANTISSA) | ((clamped >> 23) > 0).to(torch.int64) << 23
    normal = exponent >= element.min_exponent
    # A normal number keeps its exponent above the mantissa, so that a carry moves into it.
    wide = torch.where(normal, clamped - ((127 - element.bias) << 23), significand)
    half = (torch.ones_like(shift) << (shift - 1)) - 1
    rounded = (wide + half + ((wide >> shift) & 1)) >> shift
    byte = torch.where(magnitude > _INF, element.nan_byte, rounded | sign << 7)
    return byte.to(torch.uint8)


def decode_element(byte: Tensor, element: ElementFormat) -> Tensor:
    """fp32 value of element bytes (uint8)."""
    b = byte.to(torch.int64)
    mantissa_bits = element.mantissa_bits
    field = (b & 0x7F) >> mantissa_bits
    mantissa = b & ((1 << mantissa_bits) - 1)
    normal = ((field + 127 - element.bias) << 23) | (mantissa << (23 - mantissa_bits))
    value = _float(normal)
    subnormal = mantissa.to(torch.float32) * 2.0 ** (element.min_exponent - mantissa_bits)
    value = torch.where(field == 0, subnormal, value)
    top = (1 << element.exponent_bits) - 1
    if element.name == "e5m2":  # IEEE: the top exponent holds Inf and NaN
        special = torch.where(mantissa == 0, torch.inf, torch.nan)
        value = torch.where(field == top, special, value)
    else:
        value = torch.where((b & 0x7F) == 0x7F, torch.nan, value)
    return torch.where(b > 0x7F, -value, value)


def to_blocks(x: Tensor, block: tuple[int, int]) -> Tensor:
    """``[..., N, K]`` zero-padded to whole blocks, as ``[..., N/b0, b0, K/b1, b1]``."""
    size = [min(b, max(extent, 1)) for b, extent in zip(block, x.shape[-2:], strict=True)]
    pad_rows, pad_columns = -x.shape[-2] % size[0], -x.shape[-1] % size[1]
    x = torch.nn.functional.pad(x, (0, pad_columns, 0, pad_rows))
    rows, columns = x.shape[-2] // size[0], x.shape[-1] // size[1]
    return x.reshape(*x.shape[:-2], rows, size[0], columns, size[1])


def from_blocks(x: Tensor, shape: torch.Size) -> Tensor:
    """The inverse of ``to_blocks``, cropped to ``shape``."""
    flat = x.flatten(-2, -1).flatten(-3, -2)
    return flat[..., : shape[-2], : shape[-1]].contiguous()


def scale_and_factor(blocks: Tensor, grid: Grid) -> tuple[Tensor, Tensor]:
    """Scales of ``blocks`` and what divides them out: (scale_B, y-of-x factor or divisor)."""
    element, rule = grid.element, grid.rule
    magnitude = blocks.abs()
    if rule is not ScaleRule.LOG2_ROUND_UP:  # NaN elements take no part in the amax
        magnitude = torch.where(magnitude.isnan(), 0.0, magnitude)
    amax = magnitude.amax((-3, -1), keepdim=True)
    if rule in (ScaleRule.AMAX_FP32, ScaleRule.AMAX_POW2):
        scale = (amax / element.max).clamp(max=torch.finfo(torch.float32).max)
        if rule is ScaleRule.AMAX_POW2:
            scale = decode_scale(round_up_byte(scale))
        scale = torch.where((amax == 0) | (scale == 0), 1.0, scale)
        return scale, scale
    if rule is ScaleRule.FLOOR:
        byte = floor_byte(amax, element)
    elif rule is ScaleRule.LOG2_ROUND_UP:
        byte = log2_byte(amax, element)
    else:
        byte = round_up_byte(amax * torch.tensor(1.0 / element.max, dtype=torch.float32))
    factor = reciprocal(byte, rule)
    if rule is ScaleRule.ROUND_UP_ZERO_AS_ONE:
        byte = byte.clamp(min=1)
    return byte.to(torch.uint8), factor


def quantize(x: Tensor, *, grid: Grid, axis: int = -1) -> MXTensor:
    """``x`` (bf16, fp16 or fp32, ``[..., N, K]``) on ``grid``, blocks along ``axis``."""
    axis = normalize_axis(axis, x.ndim)
    shape = x.shape
    scale_shape = grid.scale_shape(tuple(shape), axis=axis)
    matrix = (
        x.detach()
        .to(torch.float32)
        .reshape(*shape[:-2], *((1,) if x.ndim < 2 else ()), *shape[-2:])
    )
    blocks = to_blocks(matrix, grid.block_for(axis))
    scale, factor = scale_and_factor(blocks, grid)
    y = blocks / factor if grid.scale_dtype is torch.float32 else blocks * factor
    elements = from_blocks(round_element(y, grid.element), matrix.shape).reshape(shape)
    scales = scale.squeeze(-1).squeeze(-2).reshape(scale_shape)
    return MXTensor(elements.view(grid.element.torch_dtype), scales, grid, axis)


def dequantize(t: MXTensor, *, dtype: torch.dtype = torch.float32) -> Tensor:
    """element * scale in fp32, rounded once to ``dtype``."""
    size = t.grid.block_for(t.axis)
    scale = t.scales if t.grid.scale_dtype is torch.float32 else decode_scale(t.scales)
    value = decode_element(t.element_bytes, t.grid.element)
    matrix = value.reshape(-1, *value.shape) if value.ndim < 2 else value
    scale_B = (
        scale.reshape(*matrix.shape[:-2], *scale.shape[-2:]).unsqueeze(-2).unsqueeze(-1)
        if value.ndim > 1
        else scale.reshape(1, 1, -1, 1)
    )
    return from_blocks(to_blocks(matrix, size) * scale_B, matrix.shape).reshape(t.shape).to(dtype)
