"""Reading a Hugging Face checkpoint: every tensor accounted for, every fault reported at once."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from mx_megatron.architecture import Architecture
from mx_megatron.layout import fuse
from mx_megatron.names import HF_EMBEDDING, HF_OUTPUT, ParameterMap, parameter_maps

_BUFFERS = (".rotary_emb.inv_freq",)
_SHOWN = 8


def load_parameters(directory: Path, arch: Architecture, parameters: Mapping[str, Tensor]) -> None:
    """Copies the checkpoint into ``parameters`` (by Megatron-Core name), converting to their dtype.

    Raises FileNotFoundError when there are no safetensors files, and ValueError that lists every
    missing, unexpected or misshapen tensor and every parameter left unset. Nothing is changed
    when it raises.
    """
    maps = parameter_maps(arch)
    with ExitStack() as stack:
        files = [
            stack.enter_context(safe_open(path, framework="pt"))
            for path in _weight_files(directory)
        ]
        where: dict[str, Any] = {name: file for file in files for name in file.keys()}  # noqa: SIM118
        problems = _names(where, maps, arch) + _parameters(maps, parameters)
        problems += _shapes(where, maps)
        if not problems and arch.tied_embeddings and HF_OUTPUT in where:
            problems += _tied(where)
        if problems:
            more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
            raise ValueError(
                f"checkpoint {directory} does not fit {arch.name}: "
                + "; ".join(problems[:_SHOWN])
                + more
            )
        with torch.no_grad():
            for entry in maps:
                parts = [where[name].get_tensor(name) for name, _ in entry.parts]
                parameters[entry.name].copy_(fuse(parts, entry.fusion, arch))


def _weight_files(directory: Path) -> list[Path]:
    index = directory / "model.safetensors.index.json"
    if index.is_file():
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        paths = [directory / shard for shard in shards]
    else:
        paths = [directory / "model.safetensors"]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise FileNotFoundError(
            f"{directory} lacks {', '.join(missing)}; expected safetensors weights "
            "(model.safetensors, or the shards that model.safetensors.index.json names)"
        )
    return paths


def _names(
    where: Mapping[str, Any], maps: tuple[ParameterMap, ...], arch: Architecture
) -> list[str]:
    wanted = {name for entry in maps for name, _ in entry.parts}
    optional = {HF_OUTPUT} if arch.tied_embeddings else set()
    unexpected = {n for n in where if n not in wanted | optional and not n.endswith(_BUFFERS)}
    return [f"missing tensor {name}" for name in sorted(wanted - where.keys())] + [
        f"unexpected tensor {name}" for name in sorted(unexpected)
    ]


def _parameters(maps: tuple[ParameterMap, ...], parameters: Mapping[str, Tensor]) -> list[str]:
    mapped = {entry.name for entry in maps}
    return [f"parameter {n} would stay unset" for n in sorted(parameters.keys() - mapped)] + [
        f"the model has no parameter {name}" for name in sorted(mapped - parameters.keys())
    ]


def _shapes(where: Mapping[str, Any], maps: tuple[ParameterMap, ...]) -> list[str]:
    problems = []
    for entry in maps:
        for name, expected in entry.parts:
            if name not in where:
                continue
            found = where[name].get_slice(name)
            shape, dtype = tuple(found.get_shape()), found.get_dtype()
            if shape != expected:
                problems.append(f"{name} has shape {shape}, expected {expected}")
            if dtype not in ("BF16", "F16", "F32"):
                problems.append(f"{name} has dtype {dtype}, expected BF16, F16 or F32")
    return problems


def _tied(where: Mapping[str, Any]) -> list[str]:
    output: Tensor = where[HF_OUTPUT].get_tensor(HF_OUTPUT)
    if torch.equal(output, where[HF_EMBEDDING].get_tensor(HF_EMBEDDING)):
        return []
    return [f"{HF_OUTPUT} differs from {HF_EMBEDDING} though config.json ties them"]
