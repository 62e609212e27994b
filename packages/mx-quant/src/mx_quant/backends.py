"""The registry of backends: which one serves a call, and why not the faster ones.

A backend is a module with ``refusal(call)`` and the operations ``quantize``, ``quantize_both``,
``quantize_into``, ``dequantize`` and ``fake_quantize``. All equal the reference byte for byte, so
the choice is a matter of speed alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import torch

from mx_quant import eager, native
from mx_quant.call import Call
from mx_quant.grids import MXFP8

REGISTRY: dict[str, ModuleType] = {"native": native, "eager": eager}
"""Backends by name, the fastest first; the last one refuses nothing."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The backend of a call and the reasons why the ones before it do not serve."""

    name: str
    module: ModuleType
    refusals: tuple[tuple[str, str], ...]

    def __str__(self) -> str:
        detail = self.module.describe()
        passed = "; ".join(f"not {name}: {why}" for name, why in self.refusals)
        return f"{self.name} ({detail})" + (f"; {passed}" if passed else "")


def choose(call: Call) -> Choice:
    """The fastest backend that serves ``call``."""
    refusals: list[tuple[str, str]] = []
    for name, module in REGISTRY.items():
        why = module.refusal(call)
        if not why:
            return Choice(name, module, tuple(refusals))
        refusals.append((name, why))
    raise RuntimeError(f"no backend serves {call}: {refusals}")


def typical(device: str) -> Call:
    """The call that ``backend`` and ``mx-quant doctor`` speak of: a bf16 weight onto MXFP8."""
    return Call("quantize", device, torch.bfloat16, MXFP8, -1, (1024, 1024))
