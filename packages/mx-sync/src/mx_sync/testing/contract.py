"""What every ``EngineWeights`` must do, as tests to subclass: the same for the fake and the real.

    class TestMySink(SinkContract):
        @pytest.fixture
        def harness(self):
            return Harness(engine=..., source=lambda step: ..., corrupt=...)

Each test begins with a whole sync of its own, so one live engine may serve them all.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TypeVar

from mx_quant.digest import digest
from mx_sync.bucket import Bucket, Packer
from mx_sync.errors import (
    CoverageError,
    ReadBackMismatch,
    SamplerPoisoned,
    SetMismatch,
    SyncError,
    SyncInProgress,
)
from mx_sync.manifest import Manifest
from mx_sync.plan import TransferPlan
from mx_sync.ports import EngineWeights, Readback, WeightSink, WeightSource
from mx_sync.session import sync
from mx_sync.sink import TransactionalSink

E = TypeVar("E", bound=SyncError)


@dataclass(frozen=True, slots=True)
class Harness:
    """An engine, and sources that fit it.

    ``source(step)`` gives version ``step`` of one run; two steps differ in every tensor.
    ``corrupt(name)`` makes the engine hold a wrong byte of ``name`` after the next finalize, while
    its context is open; None if the adapter cannot. ``bucket_bytes`` cuts at least one tensor.
    ``make_sink`` gives a new sink on ``engine`` where it is not simply a ``TransactionalSink``.
    """

    engine: EngineWeights
    source: Callable[[int], WeightSource]
    bucket_bytes: int
    corrupt: Callable[[str], AbstractContextManager[None]] | None = None
    make_sink: Callable[[], WeightSink] | None = None

    def sink(self) -> WeightSink:
        if self.make_sink is not None:
            return self.make_sink()
        return TransactionalSink(self.engine, version=None)


class SinkContract:
    """Subclass it, name it ``Test...`` and define the fixture ``harness``."""

    def test_every_byte_of_a_sync_is_read_back_equal_and_the_version_is_published(
        self, harness: Harness
    ) -> None:
        sink, source = harness.sink(), harness.source(1)
        report = sync(source, [sink], bucket_bytes=harness.bucket_bytes)
        manifest = source.manifest()
        assert report.bytes_equal
        assert report.checked == len(manifest.targets)
        assert sink.status().version == str(manifest.version)
        sink.require_ready()

    def test_tensors_cut_at_bucket_borders_arrive_whole(self, harness: Harness) -> None:
        manifest = harness.source(1).manifest()
        plan = TransferPlan.of(manifest, bucket_bytes=harness.bucket_bytes)
        parts = sum(len(spec.parts()) for spec in manifest.tensors)
        assert sum(len(bucket) for bucket in plan.buckets) > parts, "the harness cuts no tensor"
        sync(harness.source(1), [harness.sink()], bucket_bytes=harness.bucket_bytes)
        assert_holds(harness.engine, manifest)

    def test_a_later_version_replaces_every_tensor_and_an_earlier_one_comes_back_whole(
        self, harness: Harness
    ) -> None:
        sink = harness.sink()
        for step in (1, 2, 1):
            source = harness.source(step)
            sync(source, [sink], bucket_bytes=harness.bucket_bytes, allow_rollback=True)
            assert_holds(harness.engine, source.manifest())
            assert sink.status().version == str(source.manifest().version)

    def test_syncing_one_version_twice_equals_syncing_it_once(self, harness: Harness) -> None:
        sink = harness.sink()
        for _ in range(2):
            sync(harness.source(1), [sink], bucket_bytes=harness.bucket_bytes)
            assert_holds(harness.engine, harness.source(1).manifest())

    def test_the_transfer_buffer_may_be_overwritten_once_write_returns(
        self, harness: Harness
    ) -> None:
        sink, manifest = harness.sink(), harness.source(1).manifest()
        sink.begin(manifest)
        write_all(sink, harness.source(1), bucket_bytes=harness.bucket_bytes, scribble=True)
        sink.commit(readback=Readback.ALL)
        assert_holds(harness.engine, manifest)

    def test_names_that_do_not_match_are_refused_before_anything_changes(
        self, harness: Harness
    ) -> None:
        sink, manifest = harness.sink(), harness.source(1).manifest()
        sync(harness.source(1), [sink], bucket_bytes=harness.bucket_bytes)
        first, *rest = harness.source(2).manifest().tensors
        wrong = Manifest(
            harness.source(2).manifest().version, (*rest, replace(first, name="no.such.weight"))
        )
        error = raised(SetMismatch, lambda: sink.begin(wrong))
        assert "no.such.weight" in error.unexpected
        assert first.name in error.missing
        sink.require_ready()
        assert_holds(harness.engine, manifest)

    def test_a_bucket_that_never_came_is_named_and_poisons(self, harness: Harness) -> None:
        sink, source = harness.sink(), harness.source(1)
        sink.begin(source.manifest())
        write_all(sink, source, bucket_bytes=harness.bucket_bytes, leave_out_last=True)
        error = raised(CoverageError, lambda: sink.commit(readback=Readback.ALL))
        assert source.manifest().tensors[-1].name in error.names
        raised(SamplerPoisoned, sink.require_ready)
        self.assert_recovers(sink, harness)

    def test_an_open_sync_refuses_to_serve_and_an_abort_within_it_poisons(
        self, harness: Harness
    ) -> None:
        sink = harness.sink()
        sync(harness.source(1), [sink], bucket_bytes=harness.bucket_bytes)
        sink.begin(harness.source(2).manifest())
        write_all(sink, harness.source(2), bucket_bytes=harness.bucket_bytes)
        raised(SyncInProgress, sink.require_ready)
        sink.abort("the test says so")
        error = raised(SamplerPoisoned, sink.require_ready)
        assert str(harness.source(1).manifest().version) in str(error)
        self.assert_recovers(sink, harness)

    def test_a_wrong_byte_in_the_engine_is_named_and_poisons(self, harness: Harness) -> None:
        if harness.corrupt is None:
            return
        sink, manifest = harness.sink(), harness.source(2).manifest()
        sync(harness.source(1), [sink], bucket_bytes=harness.bucket_bytes)
        for name in {spec.grid: spec.name for spec in manifest.tensors}.values():
            with harness.corrupt(name):
                error = raised(
                    ReadBackMismatch,
                    lambda: sync(harness.source(2), [sink], bucket_bytes=harness.bucket_bytes),
                )
            readable = {key for key, target in manifest.targets.items() if target == name}
            assert set(error.names) == readable
            raised(SamplerPoisoned, sink.require_ready)
        self.assert_recovers(sink, harness)

    @staticmethod
    def assert_recovers(sink: WeightSink, harness: Harness) -> None:
        """One whole sync mends any state."""
        sync(harness.source(2), [sink], bucket_bytes=harness.bucket_bytes)
        sink.require_ready()
        assert_holds(harness.engine, harness.source(2).manifest())


def assert_holds(engine: EngineWeights, manifest: Manifest) -> None:
    """Every name and alias reads back with the manifest's digest."""
    wrong = [
        name
        for name in manifest.targets
        if digest(engine.read_back(name)) != manifest.spec(name).digest
    ]
    assert not wrong, wrong


def write_all(
    sink: WeightSink,
    source: WeightSource,
    *,
    bucket_bytes: int,
    scribble: bool = False,
    leave_out_last: bool = False,
) -> None:
    """Send the buckets by hand; ``scribble`` overwrites each buffer after its write."""
    manifest = source.manifest()
    plan = TransferPlan.of(manifest, bucket_bytes=bucket_bytes)
    packer = Packer(manifest, tensor=source.tensor)
    buckets = plan.buckets[:-1] if leave_out_last else plan.buckets
    for sequence, slices in enumerate(buckets):
        buffer = sink.sender.buffer(plan.largest_bytes)[: plan.nbytes(sequence)]
        packer.pack(slices, out=buffer)
        sink.write(Bucket(sequence, slices, buffer))
        if scribble:
            buffer.bitwise_not_()


def raised(kind: type[E], call: Callable[[], object]) -> E:
    """The error of type ``kind`` that ``call`` must raise."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"{kind.__name__} was not raised")
