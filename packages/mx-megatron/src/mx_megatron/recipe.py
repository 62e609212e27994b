"""Precision of a learner: which decoder layers compute on the grid."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mx_quant import MXFP8, Grid

PRECISIONS = ("mxfp8", "bf16")

_SYNTAX = "'all', 'none', 'fraction:X' (0 <= X <= 1) or 'skip:FIRST,LAST' (layers kept in bf16)"


@dataclass(frozen=True, slots=True)
class Recipe:
    """``precision`` is what the learner trains in; ``layers`` says where the grid would apply.

    All four linear layers of a selected decoder layer (QKV, attention output, gate/up, down) are
    on the grid; embeddings, norms, the attention core and the output layer never are. ``layers``
    is kept under ``precision="bf16"`` too: it then selects what an MXFP8 export quantizes.

    ``fraction:X`` spreads the selected layers evenly over the depth. Raises ValueError for an
    unknown precision or malformed ``layers``.
    """

    precision: str
    layers: str

    def __post_init__(self) -> None:
        check_precision(self.precision)
        select_layers(self.layers, num_layers=1_000_000, probe=True)

    def grid(self, layer: int, *, num_layers: int, precision: str | None = None) -> Grid | None:
        """The grid of decoder layer ``layer`` under ``precision`` (the recipe's own if None)."""
        chosen = check_precision(self.precision if precision is None else precision)
        if chosen == "bf16":
            return None
        return MXFP8 if layer in select_layers(self.layers, num_layers=num_layers) else None


def check_precision(precision: str) -> str:
    """``precision`` itself. Raises ValueError unless it is one of PRECISIONS."""
    if precision not in PRECISIONS:
        raise ValueError(f"precision {precision!r}; expected one of {', '.join(PRECISIONS)}")
    return precision


def select_layers(layers: str, *, num_layers: int, probe: bool = False) -> frozenset[int]:
    """Indices of the decoder layers on the grid. Raises ValueError for malformed ``layers``.

    ``probe`` checks the syntax only and returns nothing.
    """
    kind, _, argument = layers.partition(":")
    if kind == "all" and not argument:
        first, last, fraction = 0, 0, 1.0
    elif kind == "none" and not argument:
        first, last, fraction = 0, 0, 0.0
    elif kind == "fraction":
        first, last, fraction = 0, 0, _fraction(layers, argument)
    elif kind == "skip":
        first, last = _skips(layers, argument)
        fraction = 1.0
    else:
        raise ValueError(f"layers {layers!r}; expected {_SYNTAX}")
    if probe:
        return frozenset()
    if first + last > num_layers:
        raise ValueError(
            f"layers {layers!r} keeps {first} + {last} layers in bf16, but the model has "
            f"{num_layers}; use 'none' to keep all of them in bf16"
        )
    return frozenset(
        index
        for index in range(first, num_layers - last)
        if math.floor((index + 1) * fraction) > math.floor(index * fraction)
    )


def _fraction(layers: str, argument: str) -> float:
    try:
        value = float(argument)
    except ValueError:
        value = math.nan
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"layers {layers!r}; expected {_SYNTAX}")
    return value


def _skips(layers: str, argument: str) -> tuple[int, int]:
    parts = argument.split(",")
    if len(parts) != 2 or not all(part.strip().isdecimal() for part in parts):
        raise ValueError(f"layers {layers!r}; expected {_SYNTAX}")
    return int(parts[0]), int(parts[1])
