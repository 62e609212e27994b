"""What a backend is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from mx_quant.grids import Grid

Operation = Literal["quantize", "quantize_both", "dequantize", "fake_quantize"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call: ``dtype`` is that of the high-precision side (the input, or the result of
    dequantize), ``result`` the dtype of fake_quantize's result, ``device`` torch's device type."""

    op: Operation
    device: str
    dtype: torch.dtype
    grid: Grid
    axis: int
    shape: tuple[int, ...]
    result: torch.dtype | None = None
