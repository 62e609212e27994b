"""Element formats: what one stored byte means (OCP OFP8, 2023-06)."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class ElementFormat:
    """An 8-bit float format.

    A byte is sign (1 bit), exponent (``exponent_bits``), mantissa (``mantissa_bits``).
    ``max`` is the largest finite magnitude, ``emax`` its exponent, ``nan_byte`` the one NaN that
    quantization writes (sign clear).
    """

    name: str
    torch_dtype: torch.dtype
    exponent_bits: int
    mantissa_bits: int
    bias: int
    max: float
    emax: int
    nan_byte: int

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number; subnormals share it."""
        return 1 - self.bias


E4M3 = ElementFormat("e4m3", torch.float8_e4m3fn, 4, 3, 7, 448.0, 8, 0x7F)
E5M2 = ElementFormat("e5m2", torch.float8_e5m2, 5, 2, 15, 57344.0, 15, 0x7F)
