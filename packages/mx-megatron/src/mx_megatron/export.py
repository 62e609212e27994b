"""Checkpoints for others: plain Hugging Face, and the serialized MXFP8 that vLLM boots from."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mx_megatron.names import HF_EMBEDDING, HF_OUTPUT
from mx_megatron.source import LearnerSource
from mx_megatron.storage import new_directory, write_tensors
from mx_quant import MXTensor
from mx_sync.manifest import Manifest

MANIFEST_FILE = "mx_manifest.json"
FORMATS = ("hf", "mxfp8")

_COMPANIONS = ("*.json", "*.jinja", "*.model", "*.txt")
_NOT_COMPANIONS = ("config.json", MANIFEST_FILE)


def check_format(format: str) -> str:
    """``format`` itself. Raises ValueError unless it is one of FORMATS."""
    if format not in FORMATS:
        raise ValueError(f"export format {format!r}; expected one of {', '.join(FORMATS)}")
    return format


def export(
    directory: str | os.PathLike[str],
    source: LearnerSource,
    *,
    original: Path,
    config: dict[str, Any],
) -> None:
    """Writes what ``source`` holds as a checkpoint; ``directory`` appears whole or not at all.

    BF16 tensors keep their name. A tensor on the grid becomes ``X.weight`` (E4M3) and
    ``X.weight_scale`` (uint8 [N, K/32], E8M0 bytes), ModelOpt's serialized MXFP8, which vLLM
    reads. ``mx_manifest.json`` is the version's manifest. Tokenizer and generation files come from
    ``original``, the checkpoint that the learner started from; ``config`` is its config.json.
    """
    manifest = source.manifest()
    tensors: dict[str, Tensor] = {}
    for name in manifest.names:
        tensor = source.tensor(name)
        if isinstance(tensor, MXTensor):
            tensors[name] = tensor.elements
            tensors[f"{name}_scale"] = tensor.scales
        else:
            tensors[name] = tensor
    with new_directory(directory) as work:
        write_tensors(work / "model.safetensors", _unshared(tensors))
        text = json.dumps(_config(config, manifest), indent=2)
        (work / "config.json").write_text(text + "\n", encoding="utf-8")
        (work / MANIFEST_FILE).write_bytes(manifest.encode())
        for path in _companions(original):
            shutil.copyfile(path, work / path.name)


def _config(config: dict[str, Any], manifest: Manifest) -> dict[str, Any]:
    out = {key: value for key, value in config.items() if key != "torch_dtype"}
    out["dtype"] = "bfloat16"
    if manifest.quantized:
        excluded = excluded_modules(manifest)
        out["quantization_config"] = {
            "quant_method": "modelopt",
            "quant_algo": "MXFP8",
            "kv_cache_quant_algo": None,
            "ignore": excluded,
            "exclude_modules": excluded,
        }
    return out


def excluded_modules(manifest: Manifest) -> list[str]:
    """Full names of the matrix modules that are not on the grid, the output layer included.

    Full names, not patterns: vLLM's ModelOpt reader also takes an entry as a substring of module
    names, and ``model.layers.1.mlp.down_proj`` is part of no other module's name.
    """
    names = [
        spec.name.removesuffix(".weight")
        for spec in manifest.tensors
        if spec.grid is None and len(spec.shape) == 2
    ]
    output = HF_OUTPUT.removesuffix(".weight")
    return names if output in names else [*names, output]


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    # safetensors refuses tensors that share storage: gate and up are views of one fused weight.
    seen: set[int] = set()
    out = {}
    for name, tensor in tensors.items():
        pointer = tensor.untyped_storage().data_ptr()
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        out[name] = tensor if whole and pointer not in seen else _clone(tensor)
        seen.add(pointer)
    return out


def _clone(tensor: Tensor) -> Tensor:
    if tensor.dtype.itemsize == 1:
        return tensor.view(torch.uint8).clone().view(tensor.dtype)
    return tensor.detach().clone()


def _companions(original: Path) -> list[Path]:
    found = {path for pattern in _COMPANIONS for path in original.glob(pattern)}
    return sorted(
        path
        for path in found
        if path.is_file()
        and path.name not in _NOT_COMPANIONS
        and not path.name.endswith(".index.json")
    )


__all__ = ["FORMATS", "HF_EMBEDDING", "MANIFEST_FILE", "check_format", "excluded_modules", "export"]
