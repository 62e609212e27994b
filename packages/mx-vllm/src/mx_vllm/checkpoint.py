"""What a checkpoint directory holds, read from its own files before an engine is started.

A serialized MXFP8 checkpoint (ModelOpt's form) stores a linear layer on the grid as ``X.weight``,
E4M3 ``[N, K]``, and ``X.weight_scale``, uint8 E8M0 bytes ``[N, K/32]``. Which layers these are is
read from the stored tensors; ``quantization_config.ignore`` must say the same, by full names.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

SUPPORTED: Final = ("LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
PRECISIONS: Final = ("bf16", "mxfp8")

_SCALE: Final = ".weight_scale"
_MAX_HEADER_BYTES: Final = 100_000_000


class UnsupportedCheckpoint(ValueError):
    """The directory cannot be served as asked; the message says what to do instead."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """``stored``: tensor name -> (safetensors dtype, shape). ``ignored``: module names, exact."""

    path: Path
    architecture: str
    tied: bool
    stored: dict[str, tuple[str, tuple[int, ...]]]
    quantization: dict[str, Any] | None
    ignored: frozenset[str]

    @property
    def on_grid(self) -> frozenset[str]:
        """Modules whose weight is stored as E4M3 elements with E8M0 scales."""
        return frozenset(name.removesuffix(_SCALE) for name in self.stored if name.endswith(_SCALE))

    @classmethod
    def read(cls, path: str | Path, *, precision: str) -> Checkpoint:
        """Read and check ``path`` for serving in ``precision``, "bf16" or "mxfp8".

        Raises UnsupportedCheckpoint: no such directory, no weights, an architecture this package
        does not serve, or a checkpoint of the other precision. ValueError: unknown precision.
        """
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r}; expected one of {', '.join(PRECISIONS)}")
        root = Path(path)
        config = _config(root)
        found = cls(
            path=root,
            architecture=_architecture(root, config),
            tied=bool(config.get("tie_word_embeddings", False)),
            stored=_stored(root),
            quantization=config.get("quantization_config"),
            ignored=ignored_modules(config.get("quantization_config")),
        )
        found._check_precision(precision)
        if precision == "mxfp8":
            found._check_grid()
        return found

    def _check_precision(self, precision: str) -> None:
        if precision == "bf16" and (self.quantization is not None or self.on_grid):
            raise UnsupportedCheckpoint(
                f"{self.path} is a quantized checkpoint ({len(self.on_grid)} modules with scales), "
                "and precision bf16 was asked for: boot the plain Hugging Face export, or set "
                "precision mxfp8"
            )
        if precision == "mxfp8" and self.quantization is None:
            raise UnsupportedCheckpoint(
                f"{self.path} has no quantization_config, and precision mxfp8 was asked for: a "
                "BF16 checkpoint is quantized once, by the learner; boot what it exports in the "
                "mxfp8 format, or set precision bf16"
            )

    def _check_grid(self) -> None:
        problems = []
        for module in sorted(self.on_grid):
            elements = self.stored.get(f"{module}.weight")
            dtype, shape = self.stored[f"{module}{_SCALE}"]
            if elements is None or elements[0] != "F8_E4M3":
                problems.append(f"{module}: scales beside a weight that is {elements}, not F8_E4M3")
            elif dtype != "U8" or (*shape[:-1], shape[-1] * 32) != elements[1]:
                problems.append(
                    f"{module}: weight {elements[1]} with scales {dtype} {shape}; expected U8, one "
                    "per 32 elements of K"
                )
            elif module in self.ignored:
                problems.append(f"{module}: stored on the grid and listed as ignored")
        bare = [
            name
            for name, (dtype, _) in self.stored.items()
            if dtype.startswith("F8") and name.removesuffix(".weight") not in self.on_grid
        ]
        problems += [f"{name}: float8 without {_SCALE.lstrip('.')}" for name in sorted(bare)]
        if problems:
            raise UnsupportedCheckpoint(
                f"{self.path} is not serialized MXFP8: {'; '.join(problems[:8])}"
                f"{f' and {len(problems) - 8} more' if len(problems) > 8 else ''}; export it again"
            )


def ignored_modules(quantization: dict[str, Any] | None) -> frozenset[str]:
    """Full module names that ``quantization_config`` leaves off the grid.

    Raises UnsupportedCheckpoint for a method other than ModelOpt's MXFP8, a quantized KV cache, or
    a pattern: patterns and substrings match more than was meant (``mlp.gate`` is part of
    ``mlp.gate_up_proj``).
    """
    if quantization is None:
        return frozenset()
    nested = quantization.get("quantization")
    fields = nested if isinstance(nested, dict) else quantization
    method = str(quantization.get("quant_method", "")).lower()
    algorithm = str(fields.get("quant_algo", "")).upper()
    if not method.startswith("modelopt") or algorithm != "MXFP8":
        raise UnsupportedCheckpoint(
            f"quantization_config is {method or 'unnamed'}/{algorithm or 'unnamed'}; expected "
            "quant_method modelopt with quant_algo MXFP8"
        )
    if fields.get("kv_cache_quant_algo") or fields.get("kv_cache_scheme"):
        raise UnsupportedCheckpoint("a quantized KV cache is not supported; export without it")
    names = fields.get("ignore", fields.get("exclude_modules")) or []
    patterns = sorted(name for name in names if any(mark in name for mark in "*?["))
    if patterns:
        raise UnsupportedCheckpoint(
            f"quantization_config.ignore has patterns {patterns}; expected full module names, "
            "because a pattern decides the layer set a second time"
        )
    return frozenset(names)


def _config(root: Path) -> dict[str, Any]:
    file = root / "config.json"
    if not file.is_file():
        what = "has no config.json" if root.is_dir() else "is not a directory"
        raise UnsupportedCheckpoint(
            f"{root} {what}; expected a local checkpoint directory with config.json and "
            "*.safetensors (models are not downloaded)"
        )
    config = json.loads(file.read_text(encoding="utf-8"))
    if not isinstance(config, dict):
        raise UnsupportedCheckpoint(f"{file} is not a JSON object")
    return config


def _architecture(root: Path, config: dict[str, Any]) -> str:
    found = config.get("architectures") or ["none"]
    if found[0] not in SUPPORTED:
        raise UnsupportedCheckpoint(
            f"{root}: architecture {found[0]} is not supported; expected one of "
            f"{', '.join(SUPPORTED)}"
        )
    return str(found[0])


def _stored(root: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    files = sorted(root.glob("*.safetensors"))
    if not files:
        raise UnsupportedCheckpoint(f"{root} has no *.safetensors; convert the checkpoint first")
    stored: dict[str, tuple[str, tuple[int, ...]]] = {}
    for file in files:
        for name, entry in _header(file).items():
            if name != "__metadata__":
                stored[name] = (entry["dtype"], tuple(entry["shape"]))
    return stored


def _header(file: Path) -> dict[str, Any]:
    # The format's first 8 bytes are the little-endian length of a JSON header.
    with file.open("rb") as stream:
        head = stream.read(8)
        size = struct.unpack("<Q", head)[0] if len(head) == 8 else 0
        if not 0 < size <= _MAX_HEADER_BYTES:
            raise UnsupportedCheckpoint(f"{file} is not a safetensors file")
        header = json.loads(stream.read(size))
    if not isinstance(header, dict):
        raise UnsupportedCheckpoint(f"{file} has a header that is not a JSON object")
    return header
