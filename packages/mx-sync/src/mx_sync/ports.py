"""The seams of a sync. Adapters implement these; nothing here knows an engine.

WeightSource  ->  session.sync  ->  WeightSink  ->  EngineWeights
 (learner)         (Sender)        (transaction)      (engine)
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

from torch import Tensor

from mx_quant.tensor import MXTensor
from mx_sync.bucket import Bucket
from mx_sync.manifest import Manifest
from mx_sync.version import WeightVersion


@dataclass(frozen=True, slots=True)
class Readback:
    """How much of what the engine will compute with is read back before it is published.

    ``Readback.ALL``, ``Readback.OFF``, or ``Readback.sampled(0.1, seed=0)``: a fraction of the
    names, at least one, another choice for every version. Raises ValueError outside (0, 1].
    """

    mode: str
    fraction: float
    seed: int

    ALL: ClassVar[Readback]
    OFF: ClassVar[Readback]

    def __post_init__(self) -> None:
        ranges = {"all": self.fraction == 1, "off": self.fraction == 0}
        if not ranges.get(self.mode, self.mode == "sampled" and 0 < self.fraction <= 1):
            raise ValueError(
                f"read-back mode {self.mode!r} with fraction {self.fraction}: expected 'all' (1),"
                " 'off' (0) or 'sampled' (above 0, at most 1)"
            )

    @classmethod
    def sampled(cls, fraction: float, *, seed: int) -> Readback:
        """Read back ``fraction`` of the names, chosen by ``seed`` and the version."""
        return cls("sampled", fraction, seed)

    def choose(self, names: Sequence[str], *, version: WeightVersion) -> tuple[str, ...]:
        """The names to read back, in their given order. Both sides can compute it."""
        count = math.ceil(self.fraction * len(names))
        if self.mode != "sampled" or count == len(names):
            return tuple(names[:count])
        picked = random.Random(f"{self.seed}:{version}").sample(range(len(names)), count)
        return tuple(names[i] for i in sorted(picked))


Readback.ALL = Readback("all", 1.0, 0)
Readback.OFF = Readback("off", 0.0, 0)


@dataclass(frozen=True, slots=True)
class CommitReceipt:
    """What a sink verified. ``digests``: name or alias -> digest of what was read back."""

    version: str
    tensors: int
    nbytes: int
    digests: Mapping[str, str]
    seconds: Mapping[str, float]

    @property
    def checked(self) -> int:
        """How many names, aliases included, were read back."""
        return len(self.digests)


@dataclass(frozen=True, slots=True)
class SinkStatus:
    """``version`` is the last good one; ``open`` the one being received; ``poisoned`` the reason.

    A sink may serve only when both ``poisoned`` and ``open`` are None.
    """

    version: str | None
    poisoned: str | None
    open: str | None


@runtime_checkable
class WeightSource(Protocol):
    """The learner's side."""

    def manifest(self) -> Manifest:
        """Names, forms and digests of the bytes that the forward GEMMs read now."""
        ...

    def tensor(self, name: str) -> MXTensor | Tensor:
        """The learner's own bytes in canonical form: CPU, contiguous, a view where possible."""
        ...


class Sender(Protocol):
    """Owns the buffers that a transport moves buckets in."""

    @property
    def slots(self) -> int:
        """How many buckets may be in flight.

        With one, every call is made on the caller's thread; with more, a sink's calls come one
        after the other from one thread of its own.
        """
        ...

    def buffer(self, nbytes: int) -> Tensor:
        """The next buffer in turn, at least ``nbytes`` long: uint8, one axis.

        The caller makes sure that nobody reads its previous content any more.
        """
        ...


@runtime_checkable
class WeightSink(Protocol):
    """The sampler's side of one sync: begin, write*, prepare, publish; or abort at any point.

    ``commit`` is prepare and publish in one. With several samplers, none publishes before all
    have prepared.
    """

    @property
    def name(self) -> str:
        """What messages call this sink."""
        ...

    @property
    def sender(self) -> Sender:
        """The buffers to pack into. Sinks may share one."""
        ...

    def begin(self, manifest: Manifest, *, allow_rollback: bool = False) -> None:
        """Open a sync; nothing has changed if this raises before the engine was opened."""
        ...

    def write(self, bucket: Bucket) -> None:
        """Returns when the bucket's buffer may be reused."""
        ...

    def prepare(self, *, readback: Readback) -> CommitReceipt:
        """Everything has been written: finalize, read back, compare. Not served yet."""
        ...

    def publish(self) -> None:
        """Serve what was prepared."""
        ...

    def commit(self, *, readback: Readback) -> CommitReceipt:
        """``prepare`` and ``publish``."""
        ...

    def abort(self, reason: str) -> None:
        """End the open sync, if there is one; poisons if the engine was touched."""
        ...

    def status(self) -> SinkStatus:
        """What is held, what is open, what went wrong. Never waits for a sync."""
        ...

    def require_ready(self) -> None:
        """Raises SamplerPoisoned or SyncInProgress unless one whole version is served."""
        ...


class EngineWeights(Protocol):
    """What an engine adapter implements; ``TransactionalSink`` drives it, one call at a time.

    An exception from any of these poisons the sampler, except from ``expected_names``, which runs
    before anything has changed.
    """

    def expected_names(self) -> AbstractSet[str]:
        """Every canonical name that the live model has, tied names included."""
        ...

    def open(self, manifest: Manifest) -> None:
        """Start the engine's reload. Check here what the engine can: shapes, forms, layer set."""
        ...

    def place(self, name: str, tensor: MXTensor | Tensor) -> None:
        """One whole tensor. It is a view of a transfer buffer: copy what must outlive the call."""
        ...

    def finalize(self, version: WeightVersion) -> None:
        """Everything is placed: apply layouts once, refresh derived state."""
        ...

    def read_back(self, name: str) -> MXTensor | Tensor:
        """What the GEMM will read, in canonical form; aliases are readable too.

        Raises ValueError when that cannot be expressed in canonical form (off the grid).
        """
        ...

    def publish(self, version: WeightVersion) -> None:
        """Drop prefix caches and label the engine."""
        ...

    def discard(self) -> None:
        """Close a reload that will not be finished.

        Must raise if ``open`` has already changed what the engine computes with.
        """
        ...
