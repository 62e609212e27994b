"""What one version consists of: names, shapes, dtypes, grids and digests. No bytes of weights.

A manifest is made by the learner from its live modules. Which tensors are on a grid is decided
there, once; everybody else reads it here.

Shapes are those of the whole canonical tensor (a Hugging Face name and layout). A tensor on a grid
travels as two parts, ``elements`` (one byte each, the tensor's shape) and ``scales`` (the grid's
scale dtype, one per block along the last two axes); any other tensor is one part, ``data``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import torch

from mx_quant.grids import Grid
from mx_sync.errors import ManifestError, explain, listed
from mx_sync.version import WeightVersion

MAX_TENSORS: Final = 2**17
MAX_NAME: Final = 512
MAX_RANK: Final = 8
MAX_TENSOR_BYTES: Final = 2**44
MAX_TOTAL_BYTES: Final = 2**46

DTYPES: Final[dict[str, torch.dtype]] = {
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
}
DTYPE_NAMES: Final[dict[torch.dtype, str]] = {dtype: name for name, dtype in DTYPES.items()}

_DIGEST = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class PartSpec:
    """One contiguous run of bytes: ``part`` is "data", "elements" or "scales"."""

    part: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of this part, without padding."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One tensor of a version.

    ``dtype`` is "bf16", "fp32", "fp16", "e4m3" or "e5m2"; with a ``grid`` it is the grid's element
    format. ``digest`` is ``mx_quant.digest`` of the whole tensor, 32 lower-case hex digits.

    Raises:
        ManifestError: a field is not valid by itself or does not fit the others.

    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    grid: Grid | None
    digest: str

    def __post_init__(self) -> None:
        _check_name(self.name, what="tensor name")
        self._check_shape()
        if self.dtype not in DTYPES:
            raise self._error("unknown dtype", " | ".join(DTYPES), repr(self.dtype)[:80])
        if self.grid is not None:
            self._check_grid(self.grid)
        if not isinstance(self.digest, str) or _DIGEST.fullmatch(self.digest) is None:
            raise self._error("bad digest", "32 lower-case hex digits", f"{self.digest!r:.80}")
        if self.nbytes > MAX_TENSOR_BYTES:
            raise self._error("tensor too large", f"<= {MAX_TENSOR_BYTES} bytes", str(self.nbytes))

    def parts(self) -> tuple[PartSpec, ...]:
        """The runs of bytes that travel, in this order."""
        dtype = DTYPES[self.dtype]
        if self.grid is None:
            return (PartSpec("data", self.shape, dtype),)
        scales = PartSpec(
            "scales", self.grid.scale_shape(self.shape, axis=-1), self.grid.scale_dtype
        )
        return PartSpec("elements", self.shape, dtype), scales

    @property
    def nbytes(self) -> int:
        """Bytes of all parts, without padding."""
        return sum(part.nbytes for part in self.parts())

    def _check_shape(self) -> None:
        shape = self.shape
        if not isinstance(shape, tuple) or len(shape) > MAX_RANK:
            raise self._error("bad shape", f"at most {MAX_RANK} axes", f"{shape!r:.120}")
        for size in shape:
            if type(size) is not int or not 1 <= size <= MAX_TENSOR_BYTES:
                raise self._error(
                    "bad shape", f"integers from 1 to {MAX_TENSOR_BYTES}", f"{shape!r:.120}"
                )

    def _check_grid(self, grid: Grid) -> None:
        if DTYPES[self.dtype] != grid.element.torch_dtype:
            raise self._error(
                "dtype does not fit the grid", f"the element of {grid.id}", self.dtype
            )
        try:
            grid.scale_shape(self.shape, axis=-1)
        except ValueError as error:
            raise self._error("shape does not fit the grid", str(error), self.shape) from None

    def _error(self, what: str, expected: str, found: object) -> ManifestError:
        text = explain(what, tensor=str(self.name)[:MAX_NAME], expected=expected, found=found)
        return ManifestError(text, tensor=str(self.name)[:MAX_NAME])


@dataclass(frozen=True)
class Manifest:
    """All tensors of one version, in the order in which they travel.

    ``aliases`` are ``(alias, name)``: a second name for the same storage, such as a tied
    ``lm_head.weight``. An alias carries no bytes and is read back like any other tensor.

    Raises:
        ManifestError: names or aliases repeat, an alias points at nothing, or a bound is exceeded.
            All such faults are collected and raised once.

    """

    version: WeightVersion
    tensors: tuple[TensorSpec, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    _specs: dict[str, TensorSpec] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_specs", {spec.name: spec for spec in self.tensors})
        faults = list(self._faults())
        if faults:
            text = explain(
                f"invalid manifest: {listed(faults, separator='; ')}", version=self.version
            )
            raise ManifestError(text, faults=faults)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The tensors that carry bytes, in order; aliases are not among them."""
        return tuple(spec.name for spec in self.tensors)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of weights that travel, without padding."""
        return sum(spec.nbytes for spec in self.tensors)

    @cached_property
    def quantized(self) -> tuple[str, ...]:
        """The names that are on a grid, in order."""
        return tuple(spec.name for spec in self.tensors if spec.grid is not None)

    @cached_property
    def targets(self) -> dict[str, str]:
        """Every readable name, aliases included -> the name that carries its bytes."""
        return {name: name for name in self.names} | dict(self.aliases)

    def spec(self, name: str) -> TensorSpec:
        """The spec of a name or alias. Raises ManifestError for any other name."""
        found = self._specs.get(self.targets.get(name, name))
        if found is None:
            text = explain("no such tensor", tensor=str(name)[:MAX_NAME], version=self.version)
            raise ManifestError(text, tensor=str(name)[:MAX_NAME])
        return found

    def encode(self) -> bytes:
        """JSON by the schema ``mx-sync/manifest/1``. Raises ManifestError above the size bound."""
        from mx_sync.codec import encode_manifest

        return encode_manifest(self)

    @classmethod
    def decode(cls, data: bytes) -> Manifest:
        """The inverse of ``encode``; trusts nothing. Raises ManifestError."""
        from mx_sync.codec import decode_manifest

        return decode_manifest(data)

    def _faults(self) -> list[str]:
        faults = []
        if not 1 <= len(self.tensors) <= MAX_TENSORS:
            faults.append(f"{len(self.tensors)} tensors, expected 1 to {MAX_TENSORS}")
        if len(self.aliases) > MAX_TENSORS:
            faults.append(f"{len(self.aliases)} aliases, expected at most {MAX_TENSORS}")
        seen: set[str] = set()
        for name in [spec.name for spec in self.tensors] + [alias for alias, _ in self.aliases]:
            if name in seen:
                faults.append(f"name {name!r} appears more than once")
            seen.add(name)
        for alias, name in self.aliases:
            _check_name(alias, what="alias")
            if name not in self._specs:
                faults.append(f"alias {alias!r} points at {name!r:.200}, which carries no bytes")
        total = sum(spec.nbytes for spec in self.tensors)
        if total > MAX_TOTAL_BYTES:
            faults.append(f"{total} bytes in all, expected at most {MAX_TOTAL_BYTES}")
        return faults


def _check_name(name: object, *, what: str) -> None:
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise ManifestError(
            explain(
                f"bad {what}",
                expected=f"1 to {MAX_NAME} printable characters",
                found=f"{name!r:.120}",
            )
        )
