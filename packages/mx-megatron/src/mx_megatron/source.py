"""The learner's weights as a sampler receives them: its own forward bytes, by Hugging Face name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from mx_megatron.architecture import Architecture
from mx_megatron.layout import split, split_mx
from mx_megatron.names import ParameterMap, aliases, parameter_maps
from mx_quant import MXTensor, digest
from mx_sync.manifest import DTYPE_NAMES, Manifest, TensorSpec
from mx_sync.version import WeightVersion


class WeightBytes(Protocol):
    """One Megatron-Core parameter as it is exported: rowwise bytes on a grid, or bf16."""

    def __call__(self, entry: ParameterMap, /) -> MXTensor | Tensor: ...


class LearnerSource:
    """A ``mx_sync.WeightSource`` over one version of a learner.

    Tensors are views of what the learner computes with where its row order allows (everything but
    Q, K and V of grouped models, which are gathered once). The source is of one version: after the
    next optimizer step every call raises RuntimeError, so no sync can mix two versions.
    """

    def __init__(
        self,
        *,
        version: WeightVersion,
        current: Callable[[], WeightVersion],
        arch: Architecture,
        read: WeightBytes,
    ) -> None:
        self._version = version
        self._current = current
        self._arch = arch
        self._read = read
        self._aliases = aliases(arch)
        self._entries = {
            name: (entry, index)
            for entry in parameter_maps(arch)
            for index, (name, _) in enumerate(entry.parts)
        }
        self._gathered: dict[str, tuple[MXTensor | Tensor, ...]] = {}
        self._manifest: Manifest | None = None

    def manifest(self) -> Manifest:
        """Names, shapes, grids and digests of every tensor, in Hugging Face's order."""
        self._require_current()
        if self._manifest is None:
            specs = tuple(_spec(name, self.tensor(name)) for name in self._entries)
            self._manifest = Manifest(self._version, specs, self._aliases)
        return self._manifest

    def tensor(self, name: str) -> MXTensor | Tensor:
        """The contiguous canonical tensor of a name or alias. Raises KeyError for any other."""
        self._require_current()
        target = dict(self._aliases).get(name, name)
        if target not in self._entries:
            raise KeyError(f"{name} is no tensor of {self._arch.name} (version {self._version})")
        entry, index = self._entries[target]
        if entry.name not in self._gathered:
            self._gathered[entry.name] = self._split(entry)
        return self._gathered[entry.name][index]

    def _split(self, entry: ParameterMap) -> tuple[MXTensor | Tensor, ...]:
        whole = self._read(entry)
        if isinstance(whole, MXTensor):
            return split_mx(whole, entry.fusion, self._arch)
        return split(whole.detach(), entry.fusion, self._arch)

    def _require_current(self) -> None:
        now = self._current()
        if now != self._version:
            raise RuntimeError(
                f"this source is of version {self._version}, the learner is at {now}; take a new "
                "one with source() after each step"
            )


def _spec(name: str, tensor: MXTensor | Tensor) -> TensorSpec:
    grid = tensor.grid if isinstance(tensor, MXTensor) else None
    dtype: torch.dtype = (
        tensor.grid.element.torch_dtype if isinstance(tensor, MXTensor) else tensor.dtype
    )
    return TensorSpec(name, tuple(tensor.shape), DTYPE_NAMES[dtype], grid, digest(tensor))
