"""An ``EngineWeights`` in a dictionary, which misbehaves on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from torch import Tensor

from mx_quant.tensor import MXTensor
from mx_sync.bucket import byte_views, describe_form
from mx_sync.manifest import Manifest
from mx_sync.version import WeightVersion

Value = MXTensor | Tensor


def _never(_: MemoryEngine) -> None:
    return None


class MemoryEngine:
    """An ``EngineWeights`` over a dictionary, with storage that keeps its addresses.

    ``names`` is what the live model has, aliases included. ``on`` maps a step ("open", "finalize",
    "publish", "discard", or "place:<name>") to a hook that misbehaves after that step.
    """

    def __init__(
        self,
        names: AbstractSet[str],
        *,
        on: Mapping[str, Callable[[MemoryEngine], None]] | None = None,
    ) -> None:
        self.names = set(names)
        self.storage: dict[str, Value] = {}
        self.aliases: dict[str, str] = {}
        self.on = dict(on or {})
        self.published: list[WeightVersion] = []
        self.calls: list[str] = []

    def expected_names(self) -> AbstractSet[str]:
        return self.names

    def open(self, manifest: Manifest) -> None:
        self.aliases = dict(manifest.aliases)
        self._after("open")

    def place(self, name: str, tensor: Value) -> None:
        held = self.storage.get(name)
        if held is None or describe_form(held) != describe_form(tensor):
            self.storage[name] = clone(tensor)
        else:
            for part, view in byte_views(tensor).items():
                byte_views(held)[part].copy_(view)
        self._after(f"place:{name}")

    def finalize(self, version: WeightVersion) -> None:
        self._after("finalize")

    def read_back(self, name: str) -> Value:
        return self.storage[self.aliases.get(name, name)]

    def publish(self, version: WeightVersion) -> None:
        self._after("publish")
        self.published.append(version)

    def discard(self) -> None:
        self._after("discard")

    def flip_byte(self, name: str, *, index: int = 0) -> None:
        """Change one byte of what is held under ``name``."""
        view = next(iter(byte_views(self.storage[name]).values()))
        view[index] ^= 1

    def _after(self, step: str) -> None:
        self.calls.append(step)
        self.on.get(step, _never)(self)


def clone(value: Value) -> Value:
    """A copy that shares no memory."""
    if isinstance(value, MXTensor):
        return value.clone()
    return value.clone()
