"""One version from a learner to all its samplers.

All of them serve it afterwards, or an error says what each of them still holds.

    manifest -> begin -> (pack -> write)* -> prepare, compare -> publish

The receipts are compared with the manifest here too, so a sampler's word is not its own proof.
No sampler publishes before all of them have prepared.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from mx_sync.bucket import Bucket, Packer
from mx_sync.errors import (
    ProtocolError,
    ReadBackMismatch,
    SyncError,
    TransportError,
    explain,
    listed,
)
from mx_sync.manifest import Manifest
from mx_sync.plan import Slice, TransferPlan
from mx_sync.ports import CommitReceipt, Readback, WeightSink, WeightSource

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class SyncReport:
    """What one successful sync moved, checked and cost.

    ``phase_seconds``: manifest, begin, pack, write (waiting for writes beyond packing), commit
    (of which read_back, by the slowest sink). ``bytes_equal`` is True only if every name was read
    back from every sink and equals the learner's; ``checked`` counts names over all sinks.
    """

    version: str
    seconds: float
    phase_seconds: Mapping[str, float]
    bytes: int
    tensors: int
    buckets: int
    bytes_equal: bool
    checked: int
    receipts: Mapping[str, CommitReceipt]


def sync(
    source: WeightSource,
    sinks: Sequence[WeightSink],
    *,
    bucket_bytes: int,
    readback: Readback = Readback.ALL,
    allow_rollback: bool = False,
) -> SyncReport:
    """Move ``source``'s current version to every sink.

    Raises:
        ValueError: no sinks, two of one name, or a bucket size that is no multiple of 64.
        SyncError: the first failure, of its own type; ``sink_health`` and a note tell what each
            sink holds. Every sink that had not published was aborted.

    """
    names = [sink.name for sink in sinks]
    if not names or len(set(names)) != len(names):
        raise ValueError(f"sync needs at least one sink, each with its own name; found {names}")
    session = _Session(sinks)
    try:
        return session.run(source, bucket_bytes, readback, allow_rollback=allow_rollback)
    except BaseException as error:
        session.abort_all(error)
        raise
    finally:
        session.close()


class _Lane:
    """One sink and, if its transport can overlap, the one thread that calls it."""

    def __init__(self, sink: WeightSink) -> None:
        self.sink = sink
        self.opened = self.verified = self.published = False
        self._thread = (
            ThreadPoolExecutor(1, f"mx-sync-{sink.name}") if sink.sender.slots > 1 else None
        )

    def start(self, call: Callable[[WeightSink], T]) -> Future[T]:
        if self._thread is not None:
            return self._thread.submit(call, self.sink)
        done: Future[T] = Future()
        try:
            done.set_result(call(self.sink))
        except Exception as error:
            done.set_exception(error)
        return done

    def close(self) -> None:
        if self._thread is not None:
            self._thread.shutdown()

    @staticmethod
    def health(sink: WeightSink) -> str:
        try:
            status = sink.status()
        except Exception as error:
            return f"unknown ({type(error).__name__}: {error})"
        if status.poisoned is not None:
            return f"poisoned, last held {status.version}: {status.poisoned}"
        if status.open is not None:
            return f"still open for {status.open}, last held {status.version}"
        return f"healthy, serves {status.version or 'no version yet'}"


class _Session:
    def __init__(self, sinks: Sequence[WeightSink]) -> None:
        # Threaded lanes first: they work while the others run on this thread.
        self._lanes = sorted((_Lane(sink) for sink in sinks), key=lambda x: -x.sink.sender.slots)
        self._seconds: dict[str, float] = {}

    def run(
        self, source: WeightSource, bucket_bytes: int, readback: Readback, *, allow_rollback: bool
    ) -> SyncReport:
        begun = time.perf_counter()
        with self._timed("manifest"):
            manifest = source.manifest()
            plan = TransferPlan.of(manifest, bucket_bytes=bucket_bytes)
        with self._timed("begin"):
            self._begin(manifest, allow_rollback=allow_rollback)
        self._move(manifest, plan, source)
        with self._timed("commit"):
            receipts = self._commit(manifest, readback)
        self._seconds["read_back"] = max(r.seconds.get("read_back", 0.0) for r in receipts.values())
        checked = sum(receipt.checked for receipt in receipts.values())
        return SyncReport(
            version=str(manifest.version),
            seconds=time.perf_counter() - begun,
            phase_seconds=self._seconds,
            bytes=manifest.nbytes,
            tensors=len(manifest.tensors),
            buckets=len(plan.buckets),
            bytes_equal=checked == len(manifest.targets) * len(receipts),
            checked=checked,
            receipts=receipts,
        )

    def _begin(self, manifest: Manifest, *, allow_rollback: bool) -> None:
        futures = [
            lane.start(lambda sink: sink.begin(manifest, allow_rollback=allow_rollback))
            for lane in self._lanes
        ]
        try:
            _wait(futures)
        finally:
            # A sink that refused may be in the middle of somebody else's sync: leave it alone.
            # One that did not answer may have begun.
            for lane, future in zip(self._lanes, futures, strict=True):
                refusal = future.exception() if future.done() else None
                lane.opened = refusal is None or isinstance(refusal, TransportError)

    def _move(self, manifest: Manifest, plan: TransferPlan, source: WeightSource) -> None:
        packer = Packer(manifest, tensor=source.tensor)
        senders = list({id(lane.sink.sender): lane.sink.sender for lane in self._lanes}.values())
        depth = min(sender.slots for sender in senders)
        flying: deque[list[Future[None]]] = deque()
        for sequence, slices in enumerate(plan.buckets):
            with self._timed("write"):
                while len(flying) >= depth:
                    _wait(flying.popleft())
            with self._timed("pack"):
                nbytes = plan.nbytes(sequence)
                # The full size at once: a buffer that grew later would have to be mapped again.
                buffers = [s.buffer(plan.largest_bytes)[:nbytes] for s in senders]
                packer.pack(slices, out=buffers[0])
                for other in buffers[1:]:
                    other.copy_(buffers[0])
            by_sender = {id(s): b for s, b in zip(senders, buffers, strict=True)}
            with self._timed("write"):
                flying.append(
                    [
                        lane.start(_write(sequence, slices, by_sender[id(lane.sink.sender)]))
                        for lane in self._lanes
                    ]
                )
        with self._timed("write"):
            for futures in flying:
                _wait(futures)

    def _commit(self, manifest: Manifest, readback: Readback) -> dict[str, CommitReceipt]:
        def prepared(sink: WeightSink) -> CommitReceipt:
            receipt = sink.prepare(readback=readback)
            _compare(sink.name, receipt, manifest, readback)
            return receipt

        prepares = [lane.start(prepared) for lane in self._lanes]
        try:
            receipts = _wait(prepares)
        finally:
            for lane, future in zip(self._lanes, prepares, strict=True):
                lane.verified = future.done() and future.exception() is None
        publishes = [lane.start(lambda sink: sink.publish()) for lane in self._lanes]
        try:
            _wait(publishes)
        finally:
            for lane, done in zip(self._lanes, publishes, strict=True):
                lane.published = lane.verified = done.done() and done.exception() is None
        return {lane.sink.name: got for lane, got in zip(self._lanes, receipts, strict=True)}

    def abort_all(self, error: BaseException) -> None:
        """Abort what was opened and not published; tell on ``error`` what every sink holds."""
        reason = f"{type(error).__name__}: {error}"
        health: dict[str, str] = {}
        for lane in self._lanes:
            failure = None
            if lane.opened and not lane.published:
                failure = lane.start(lambda sink: sink.abort(reason)).exception()
            told = lane.start(lane.health).result()
            if lane.verified and not lane.published:
                told = f"no fault found, aborted because another sink failed; {told}"
            health[lane.sink.name] = told if failure is None else f"{told}; abort failed: {failure}"
        for name, text in health.items():
            error.add_note(f"sink {name}: {text}")
        if isinstance(error, SyncError):
            error.sink_health = health

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()

    @contextmanager
    def _timed(self, phase: str) -> Iterator[None]:
        begun = time.perf_counter()
        yield
        self._seconds[phase] = self._seconds.get(phase, 0.0) + time.perf_counter() - begun


def _write(
    sequence: int, slices: tuple[Slice, ...], buffer: Tensor
) -> Callable[[WeightSink], None]:
    bucket = Bucket(sequence, slices, buffer)
    return lambda sink: sink.write(bucket)


def _wait(futures: Sequence[Future[T]]) -> list[T]:
    """All results. Waits for every future, then raises the first failure; notes the others."""
    failures = [error for future in futures if (error := future.exception()) is not None]
    if failures:
        for other in failures[1:]:
            failures[0].add_note(f"at the same time: {type(other).__name__}: {other}")
        raise failures[0]
    return [future.result() for future in futures]


def _compare(sink: str, receipt: CommitReceipt, manifest: Manifest, readback: Readback) -> None:
    """Raise unless ``receipt`` covers what was asked for and equals the manifest."""
    names = readback.choose(tuple(manifest.targets), version=manifest.version)
    version = str(manifest.version)
    if receipt.version != version or set(receipt.digests) != set(names):
        text = explain(
            f"{sink} sent a receipt for something else",
            version=version,
            expected=f"{version}, {len(names)} names read back",
            found=f"{receipt.version}, {receipt.checked} names read back",
        )
        raise ProtocolError(text, sink=sink)
    wrong = [name for name in names if receipt.digests[name] != manifest.spec(name).digest]
    if wrong:
        text = explain(
            f"{sink} read back other bytes than the learner's",
            tensor=listed(wrong),
            version=version,
            expected=manifest.spec(wrong[0]).digest,
            found=receipt.digests[wrong[0]],
            remedy="every sampler was told to abort; sync again, and if it repeats, audit it",
        )
        raise ReadBackMismatch(text, names=wrong, version=version, sink=sink)
