"""A ``WeightSource`` from named tensors: what any PyTorch learner can offer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from torch import Tensor

from mx_quant.tensor import MXTensor
from mx_sync.bucket import spec_of
from mx_sync.errors import ManifestError, explain
from mx_sync.manifest import Manifest
from mx_sync.version import WeightVersion


class TensorSource:
    """Tensors by canonical name, already in the form in which the learner computes with them.

    ``tensors``: name -> MXTensor (axis -1) or bf16/fp32/fp16 tensor, on the CPU; they are not
    copied, and must not change before the sync ends. ``aliases``: (alias, name) pairs.

    Raises:
        ManifestError: from ``manifest()``, for a tensor that has no canonical form.

    """

    def __init__(
        self,
        tensors: Mapping[str, MXTensor | Tensor],
        *,
        version: WeightVersion,
        aliases: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._tensors = MappingProxyType(dict(tensors))
        self._version = version
        self._aliases = tuple(aliases)

    def manifest(self) -> Manifest:
        """Specs and digests of the tensors as they are now."""
        specs = tuple(spec_of(name, value) for name, value in self._tensors.items())
        return Manifest(self._version, specs, self._aliases)

    def tensor(self, name: str) -> MXTensor | Tensor:
        """The tensor itself, not a copy."""
        found = self._tensors.get(name)
        if found is None:
            raise ManifestError(explain("no such tensor", tensor=name, version=self._version))
        return found
