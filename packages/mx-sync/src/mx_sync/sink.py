"""The transaction: one version goes live as a whole, or the sampler refuses to serve.

    idle --begin--> open --write*--> open --prepare--> prepared --publish--> idle
    open | prepared --any failure, or abort after a byte was placed--> poisoned --begin--> open

A sink that serves something else than the last published version cannot be built from this.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

from mx_quant.digest import digest
from mx_sync.bucket import Assembler, Bucket, describe_form, spec_form
from mx_sync.errors import (
    ProtocolError,
    ReadBackMismatch,
    SamplerPoisoned,
    SetMismatch,
    SyncInProgress,
    VersionRefused,
    explain,
    listed,
)
from mx_sync.manifest import Manifest
from mx_sync.ports import CommitReceipt, EngineWeights, Readback, SinkStatus
from mx_sync.transports.inprocess import LocalSender
from mx_sync.version import WeightVersion


@dataclass(frozen=True, slots=True)
class _State:
    """Replaced as a whole, so that readers on other threads never see half a change."""

    phase: Literal["idle", "open", "prepared", "poisoned"]
    held: WeightVersion | None
    incoming: WeightVersion | None = None
    reason: str | None = None


class TransactionalSink:
    """Drives an ``EngineWeights`` through one sync at a time. A ``WeightSink``.

    ``version`` is what the engine was booted with, None if it holds no weights worth serving.
    """

    def __init__(
        self, engine: EngineWeights, *, version: WeightVersion | None, name: str = "sampler"
    ) -> None:
        self.name = name
        self.sender = LocalSender()
        self._engine = engine
        self._state = self._before = _State("idle", version)
        self._lock = threading.RLock()
        self._manifest: Manifest | None = None
        self._assembler: Assembler | None = None
        self._placed = 0
        self._seconds: dict[str, float] = {}

    @property
    def version(self) -> WeightVersion | None:
        """The last version that was published whole."""
        return self._state.held

    def status(self) -> SinkStatus:
        """What is held, open and wrong. Takes no lock, so it answers during a sync."""
        state = self._state
        text = None if state.held is None else str(state.held)
        moving = state.incoming if state.phase in ("open", "prepared") else None
        return SinkStatus(text, state.reason, None if moving is None else str(moving))

    def require_ready(self) -> None:
        """Call before generating.

        Raises:
            SamplerPoisoned: the last sync failed; says what was last held, what failed and why.
            SyncInProgress: a sync is open.

        """
        state = self._state
        if state.phase == "poisoned":
            text = explain(
                f"{self.name} refuses to generate: sync of {state.incoming} failed: {state.reason}",
                version=f"last held {state.held}",
                remedy="run one whole sync, of any version of the run from the one last held on",
            )
            raise SamplerPoisoned(text, **self._facts(state))
        if state.phase != "idle":
            text = explain(
                f"{self.name} is receiving {state.incoming} and holds parts of two versions",
                version=f"last held {state.held}",
                remedy="wait for the commit, or abort the sync if its sender is gone",
            )
            raise SyncInProgress(text, **self._facts(state))

    def begin(self, manifest: Manifest, *, allow_rollback: bool = False) -> None:
        """Open a sync. Nothing changes when the checks before it fail.

        ``allow_rollback`` admits a version before the one held, as a resumed run sends it.

        Raises:
            SyncInProgress: another sync is open.
            VersionRefused: the version is older than the one held, in the same run.
            SetMismatch: the live model and the manifest have different names (all of them told).

        """
        with self._lock:
            state = self._state
            if state.phase in ("open", "prepared"):
                self.require_ready()
            self._check_version(manifest.version, allow_rollback=allow_rollback)
            self._check_names(manifest)
            self._manifest, self._assembler = manifest, Assembler(manifest)
            self._before, self._placed, self._seconds = state, 0, {}
            self._state = _State("open", state.held, manifest.version)
            with self._poisoning("open"):
                self._engine.open(manifest)

    def write(self, bucket: Bucket) -> None:
        """Place every tensor that ``bucket`` completes.

        Raises ProtocolError (no sync open, out of sequence) and CoverageError.
        """
        with self._lock:
            _, assembler = self._require("open", "write")
            with self._poisoning("write"):
                for tensor_name, tensor in assembler.add(bucket):
                    self._placed += 1
                    self._engine.place(tensor_name, tensor)

    def prepare(self, *, readback: Readback) -> CommitReceipt:
        """Finalize, read back and compare; the version is not served yet.

        Raises CoverageError or ReadBackMismatch, and poisons.
        """
        with self._lock:
            manifest, assembler = self._require("open", "prepare")
            with self._poisoning("prepare"):
                assembler.require_complete()
                with self._timed("finalize"):
                    self._engine.finalize(manifest.version)
                with self._timed("read_back"):
                    digests = self._verify(manifest, readback)
                self._state = replace(self._state, phase="prepared")
                count = len(manifest.tensors)
                return CommitReceipt(
                    str(manifest.version), count, manifest.nbytes, digests, dict(self._seconds)
                )

    def publish(self) -> None:
        """Serve the prepared version."""
        with self._lock:
            manifest, _ = self._require("prepared", "publish")
            with self._poisoning("publish"):
                self._engine.publish(manifest.version)
            self._close(_State("idle", manifest.version))

    def commit(self, *, readback: Readback) -> CommitReceipt:
        """``prepare`` and ``publish``."""
        with self._lock:
            receipt = self.prepare(readback=readback)
            self.publish()
            return receipt

    def abort(self, reason: str) -> None:
        """End the open sync: poisoned if a tensor was placed, else as it was before ``begin``.

        Without an open sync this does nothing.
        """
        with self._lock:
            if self._state.phase not in ("open", "prepared"):
                return
            if self._placed:
                self._poison(f"aborted: {reason}")
                return
            try:
                self._engine.discard()
            except Exception as error:
                self._poison(f"aborted: {reason}; the engine could not close: {error!r}")
            else:
                self._close(self._before)

    # -- inside -----------------------------------------------------------------------------

    def _check_version(self, version: WeightVersion, *, allow_rollback: bool) -> None:
        held = self._state.held
        if allow_rollback or held is None or held.run != version.run or version >= held:
            return
        text = explain(
            f"{self.name} refuses a version that goes backwards",
            version=version,
            expected=f"{held} or later",
            found=version,
            remedy="pass allow_rollback=True if the run was resumed from an earlier step",
        )
        raise VersionRefused(text, held=str(held), found=str(version))

    def _check_names(self, manifest: Manifest) -> None:
        expected = set(self._engine.expected_names())
        delivered = set(manifest.targets)
        missing, unexpected = sorted(expected - delivered), sorted(delivered - expected)
        if missing or unexpected:
            text = explain(
                f"{self.name} and the manifest do not have the same tensors",
                version=manifest.version,
                expected=f"{len(expected)} names, of which not delivered: {listed(missing) or '-'}",
                found=f"{len(delivered)} names, of which unknown: {listed(unexpected) or '-'}",
                remedy="export every name of the live model, tied names as aliases",
            )
            raise SetMismatch(text, missing=missing, unexpected=unexpected)

    def _verify(self, manifest: Manifest, readback: Readback) -> dict[str, str]:
        names = readback.choose(tuple(manifest.targets), version=manifest.version)
        digests: dict[str, str] = {}
        faults: dict[str, str] = {}
        for name in names:
            spec = manifest.spec(name)
            try:
                value = self._engine.read_back(name)
            except ValueError as error:
                faults[name] = f"{name} (not readable in canonical form: {error})"
                continue
            digests[name] = digest(value)
            if digests[name] != spec.digest:
                form, found = spec_form(spec), describe_form(value)
                detail = f"is {found}, not {form}" if form != found else "other bytes"
                faults[name] = f"{name} ({detail}: {digests[name]}, not {spec.digest})"
        if faults:
            raise _mismatch(self.name, manifest, faults, checked=len(names))
        return digests

    def _require(self, phase: str, call: str) -> tuple[Manifest, Assembler]:
        if self._state.phase != phase or self._manifest is None or self._assembler is None:
            text = explain(
                f"{call} on {self.name} out of order",
                expected=f"a sync that is {phase}",
                found=self._state.phase,
                remedy="begin a sync first" if phase == "open" else "prepare before publishing",
            )
            raise ProtocolError(text, phase=self._state.phase, call=call)
        return self._manifest, self._assembler

    @contextmanager
    def _poisoning(self, step: str) -> Iterator[None]:
        begun = time.perf_counter()
        try:
            yield
        except BaseException as error:
            self._poison(f"{step}: {type(error).__name__}: {error}")
            raise
        finally:
            self._seconds[step] = self._seconds.get(step, 0.0) + time.perf_counter() - begun

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self._seconds[step] = time.perf_counter() - begun

    def _poison(self, reason: str) -> None:
        # Refuse first: discard may take long, or fail.
        self._close(replace(self._state, phase="poisoned", reason=reason))
        try:
            self._engine.discard()
        except Exception as error:
            noted = f"{reason}; then discard: {type(error).__name__}: {error}"
            self._state = replace(self._state, reason=noted)

    def _close(self, state: _State) -> None:
        self._state = state
        self._manifest = self._assembler = None

    @staticmethod
    def _facts(state: _State) -> dict[str, str | None]:
        held, incoming = (None if v is None else str(v) for v in (state.held, state.incoming))
        return {"held": held, "incoming": incoming, "reason": state.reason}


def _mismatch(
    sink: str, manifest: Manifest, faults: dict[str, str], *, checked: int
) -> ReadBackMismatch:
    text = explain(
        f"{sink} does not hold the learner's bytes",
        tensor=listed(list(faults.values()), separator="; "),
        version=manifest.version,
        expected=f"{checked} names equal to the manifest",
        found=f"{len(faults)} that are not",
        remedy="the sampler refuses to generate; sync again, and if it repeats, audit its loader",
    )
    return ReadBackMismatch(
        text, names=list(faults), version=str(manifest.version), details=list(faults.values())
    )
