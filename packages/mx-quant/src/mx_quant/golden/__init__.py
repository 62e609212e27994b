"""Golden vectors: blocks and their bytes, made by exact rational arithmetic without this package.

``vectors.json`` is plain JSON with bit patterns in hexadecimal, for use from any language; its
field ``about`` describes it. The script that makes it is ``golden/make.py`` of the source tree.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mx_quant.grids import by_id
from mx_quant.tensor import MXTensor

FILE = "vectors.json"
RUNFILE = f"mx/packages/mx-quant/src/mx_quant/golden/{FILE}"
_DTYPES = {
    "bf16": ("u2", torch.bfloat16),
    "fp16": ("u2", torch.float16),
    "fp32": ("u4", torch.float32),
}


@dataclass(frozen=True, slots=True)
class Blocks:
    """Inputs of one dtype ``[B, 32]`` and what they are on a grid, one row a block."""

    name: str
    x: Tensor
    expected: MXTensor


@dataclass(frozen=True, slots=True)
class Decoding:
    """All 256 elements with one scale ``[1, 256]`` and their fp32 values."""

    name: str
    t: MXTensor
    values: Tensor


def path() -> Path:
    """Where the file is: beside this module, or in Bazel's runfiles.

    Raises FileNotFoundError when it is in neither.
    """
    beside = Path(str(resources.files(__name__) / FILE))
    if beside.is_file():
        return beside
    try:
        from runfiles import Runfiles
    except ImportError:
        raise FileNotFoundError(f"{beside} is missing; reinstall mx-quant") from None
    found = Runfiles.Create()
    located = found.Rlocation(RUNFILE) if found is not None else None
    if located is None or not Path(located).is_file():
        raise FileNotFoundError(f"neither {beside} nor {RUNFILE} in the runfiles; add it to `data`")
    return Path(located)


def _numbers(text: str, dtype: str) -> Tensor:
    width, kind = _DTYPES[dtype]
    numbers = np.frombuffer(bytes.fromhex(text), dtype=f">{width}").astype(f"={width}")
    return torch.from_numpy(numbers).view(kind)


def _bytes(text: str) -> Tensor:
    return torch.frombuffer(bytearray.fromhex(text), dtype=torch.uint8)


def load() -> tuple[list[Blocks], list[Decoding]]:
    """The vectors as tensors: blocks grouped by grid and dtype, and decoding tables."""
    document = json.loads(path().read_text(encoding="utf-8"))
    return list(_blocks(document)), list(_decodings(document))


def _blocks(document: dict[str, Any]) -> Iterator[Blocks]:
    inputs = document["blocks"]
    groups: dict[tuple[str, str], list[tuple[str, int, str]]] = {}
    for index, grid_id, scale, codes in document["quantize"]:
        dtype, text = inputs[index]
        groups.setdefault((grid_id, dtype), []).append((text, scale, codes))
    for (grid_id, dtype), rows in groups.items():
        elements = torch.stack([_bytes(codes) for _, _, codes in rows])
        scales = torch.tensor([[scale] for _, scale, _ in rows], dtype=torch.uint8)
        x = torch.stack([_numbers(text, dtype) for text, _, _ in rows])
        expected = MXTensor.from_bytes(elements, scales, grid=by_id(grid_id))
        yield Blocks(f"{grid_id}-{dtype}", x, expected)


def _decodings(document: dict[str, Any]) -> Iterator[Decoding]:
    grids = {"e4m3": by_id("mxfp8"), "e5m2": by_id("mxfp8_e5m2")}
    for name, byte, text in document["decode"]:
        codes = torch.arange(256, dtype=torch.uint8).reshape(1, 256)
        scales = torch.full((1, 8), byte, dtype=torch.uint8)
        values = _numbers(text, "fp32").reshape(1, 256)
        t = MXTensor.from_bytes(codes, scales, grid=grids[name])
        yield Decoding(f"{name}-{byte}", t, values)
