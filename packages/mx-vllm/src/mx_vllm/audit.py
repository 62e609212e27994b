"""The layer set of the live model against the checkpoint that it was booted from."""

from __future__ import annotations

from collections.abc import Mapping

from mx_vllm.checkpoint import Checkpoint
from mx_vllm.names import Place


def check_layer_set(places: Mapping[str, Place], checkpoint: Checkpoint) -> None:
    """Live modules, by their own methods, must be on the grid exactly where the checkpoint is.

    Raises RuntimeError naming every tensor that differs, is missing, or has no place.
    """
    live = {name.removesuffix(".weight") for name, place in places.items() if place.grid}
    stored = {name for name in checkpoint.stored if not name.endswith(".weight_scale")}
    tied = {name for name, place in places.items() if place.tied}
    problems = [
        f"{name}: on the grid here, not in the checkpoint" for name in live - checkpoint.on_grid
    ]
    problems += [
        f"{name}: on the grid in the checkpoint, not here" for name in checkpoint.on_grid - live
    ]
    problems += [f"{name}: not in the checkpoint" for name in places.keys() - stored - tied]
    problems += [
        f"{name}: in the checkpoint, not in the live model" for name in stored - places.keys()
    ]
    for name, place in places.items():
        shape = checkpoint.stored.get(name, ("", place.shape))[1]
        if shape != place.shape:
            problems.append(f"{name}: {place.shape} here, {shape} in the checkpoint")
    if problems:
        problems.sort()
        more = f" and {len(problems) - 8} more" if len(problems) > 8 else ""
        raise RuntimeError(
            f"the live model is not {checkpoint.path}: {'; '.join(problems[:8])}{more}"
        )
