"""Saving and resuming a learner: weights, fp32 masters, Adam moments, RNG and version.

A saved state is a directory::

    state.json             schema, version, model, recipe, optimizer settings and step, arithmetic
    weights.safetensors    bf16 parameters by Megatron-Core name
    optimizer.safetensors  master.<name>, exp_avg.<name>, exp_avg_sq.<name> (fp32, flat), rng

Weights on the grid are not in it: they follow from the bf16 parameters, bit for bit.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from mx_megatron.architecture import Architecture
from mx_megatron.compat import arithmetic
from mx_megatron.optim import Optimizer
from mx_megatron.recipe import Recipe
from mx_megatron.storage import new_directory, write_tensors
from mx_sync.version import WeightVersion

log = logging.getLogger(__name__)

SCHEMA = "mx-megatron/state/1"
_MOMENTS = ("exp_avg", "exp_avg_sq")


def identity(arch: Architecture, recipe: Recipe, optimizer: Optimizer) -> dict[str, Any]:
    """What must be equal between the learner that saved and the one that loads."""
    settings = asdict(optimizer.settings)
    settings["betas"] = list(settings["betas"])
    return {"model": asdict(arch), "recipe": asdict(recipe), "optimizer": settings}


def save_state(
    directory: str | os.PathLike[str],
    *,
    parameters: dict[str, torch.nn.Parameter],
    optimizer: Optimizer,
    identity: dict[str, Any],
    version: WeightVersion,
) -> None:
    """Writes a learner's state; ``directory`` appears whole or stays as it was."""
    tensors = {"rng": torch.get_rng_state()}
    steps = set()
    for name, parameter in parameters.items():
        main, state = optimizer.slot(parameter)
        tensors[f"master.{name}"] = main
        if state:
            steps.add(float(state["step"]))
            tensors |= {f"{key}.{name}": state[key] for key in _MOMENTS}
    if len(steps) > 1:
        raise RuntimeError(f"optimizer steps differ between parameters: {sorted(steps)}")
    document = {
        "schema": SCHEMA,
        "version": {"run": version.run, "step": version.step},
        "optimizer_step": steps.pop() if steps else None,
        **identity,
        "arithmetic": arithmetic(),
    }
    with new_directory(directory) as work:
        write_tensors(work / "weights.safetensors", dict(parameters))
        write_tensors(work / "optimizer.safetensors", tensors)
        (work / "state.json").write_text(json.dumps(document, indent=1), encoding="utf-8")


def load_state(
    directory: str | os.PathLike[str],
    *,
    parameters: dict[str, torch.nn.Parameter],
    optimizer: Optimizer,
    identity: dict[str, Any],
) -> WeightVersion:
    """Reads a state back into a learner; returns its version. Nothing changes when it raises.

    A state of other arithmetic (another GEMM, thread count or torch) loads, with a warning in the
    log: the weights are the same, but the run will not go on bit for bit.

    Raises FileNotFoundError for a path that holds no state, ValueError that lists everything in
    which the state differs from this learner.
    """
    path = Path(directory)
    document = _document(path)
    weights = load_file(path / "weights.safetensors")
    tensors = load_file(path / "optimizer.safetensors")
    problems = _differences(document, identity)
    step = document.get("optimizer_step")
    wanted = {name: (tuple(p.shape), p.dtype) for name, p in parameters.items()}
    flat = _expected_state(parameters, with_moments=step is not None)
    problems += _tensor_faults("weights.safetensors", weights, wanted)
    problems += _tensor_faults("optimizer.safetensors", tensors, flat)
    if problems:
        raise ValueError(f"state {path} does not fit this learner: " + "; ".join(problems[:8]))
    changed = _differences(document, {"arithmetic": arithmetic()})
    if changed:
        log.warning("%s resumes, but not bit for bit: %s", path, "; ".join(changed))
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])
            main, _ = optimizer.slot(parameter)
            main.copy_(tensors[f"master.{name}"])
            _restore_moments(optimizer, parameter, name, tensors, step)
    torch.set_rng_state(tensors["rng"])
    saved = document["version"]
    return WeightVersion(saved["run"], saved["step"])


def _restore_moments(
    optimizer: Optimizer,
    parameter: torch.nn.Parameter,
    name: str,
    tensors: dict[str, Tensor],
    step: float | None,
) -> None:
    # DistributedOptimizer.load_state_dict gives every parameter the *same* step tensor when the
    # inner optimizer is torch's AdamW, which then counts once per parameter instead of once per
    # step. Each parameter gets its own here.
    for part in optimizer.parts:
        if parameter not in part.model_param_group_index_map:
            continue
        if not isinstance(part.optimizer, torch.optim.AdamW):
            raise NotImplementedError(
                f"resuming {type(part.optimizer).__name__} is not available; the state holds "
                "torch AdamW moments"
            )
        main, _ = optimizer.slot(parameter)
        part.optimizer.state.pop(main, None)
        if step is not None:
            moments = {key: tensors[f"{key}.{name}"].to(main.device) for key in _MOMENTS}
            part.optimizer.state[main] = {"step": torch.tensor(step), **moments}


def _expected_state(
    parameters: dict[str, torch.nn.Parameter], *, with_moments: bool
) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
    keys = ("master", *_MOMENTS) if with_moments else ("master",)
    rng = torch.get_rng_state()
    return {"rng": (tuple(rng.shape), rng.dtype)} | {
        f"{key}.{name}": ((p.numel(),), torch.float32)
        for name, p in parameters.items()
        for key in keys
    }


def _document(path: Path) -> dict[str, Any]:
    names = ("state.json", "weights.safetensors", "optimizer.safetensors")
    missing = [name for name in names if not (path / name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{path} holds no learner state: {', '.join(missing)} missing; expected a directory "
            "written by MegatronLearner.save"
        )
    document = json.loads((path / "state.json").read_text(encoding="utf-8"))
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"{path / 'state.json'} is not of schema {SCHEMA}")
    return document


def _differences(document: dict[str, Any], identity: dict[str, Any]) -> list[str]:
    problems = []
    for section, fields in identity.items():
        saved = document.get(section) or {}
        problems += [
            f"{section}.{key} is {saved.get(key)!r} in the state, {value!r} here"
            for key, value in fields.items()
            if saved.get(key) != value
        ]
    return problems


def _tensor_faults(
    file: str,
    found: dict[str, Tensor],
    expected: dict[str, tuple[tuple[int, ...], torch.dtype]],
) -> list[str]:
    faults = [f"{file} lacks {name}" for name in sorted(expected.keys() - found.keys())]
    faults += [f"{file} has unknown {name}" for name in sorted(found.keys() - expected.keys())]
    for name in expected.keys() & found.keys():
        have = (tuple(found[name].shape), found[name].dtype)
        if have != expected[name]:
            faults.append(f"{file}: {name} is {have}, expected {expected[name]}")
    return faults
