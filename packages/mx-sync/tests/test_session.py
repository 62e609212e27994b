from collections.abc import Callable
from dataclasses import replace

import pytest

from mx_sync import (
    CommitReceipt,
    ProtocolError,
    Readback,
    ReadBackMismatch,
    SamplerPoisoned,
    SyncError,
    TensorSource,
    TransactionalSink,
    sync,
)
from mx_sync.testing import MemoryEngine
from mx_sync.testing.contract import assert_holds

Make = Callable[..., TensorSource]
BUCKET = 8192


def sinks_for(source: TensorSource, *names: str) -> list[TransactionalSink]:
    readable = set(source.manifest().targets)
    return [TransactionalSink(MemoryEngine(readable), version=None, name=name) for name in names]


def engine_of(sink: TransactionalSink) -> MemoryEngine:
    engine = sink._engine
    assert isinstance(engine, MemoryEngine)
    return engine


def test_the_report_tells_what_moved_what_was_checked_and_where_the_time_went(
    make_source: Make,
) -> None:
    source = make_source(1)
    manifest = source.manifest()
    report = sync(source, sinks_for(source, "a"), bucket_bytes=BUCKET)
    assert report.version == "run-a@1"
    assert (report.bytes, report.tensors) == (manifest.nbytes, len(manifest.tensors))
    assert report.buckets > 1
    assert report.bytes_equal
    assert set(report.phase_seconds) == {
        "manifest",
        "begin",
        "pack",
        "write",
        "commit",
        "read_back",
    }
    assert set(report.receipts["a"].digests) == set(manifest.targets)


def test_every_sink_gets_every_byte(make_source: Make) -> None:
    source = make_source(1)
    sinks = sinks_for(source, "a", "b", "c")
    report = sync(source, sinks, bucket_bytes=BUCKET)
    for sink in sinks:
        assert_holds(engine_of(sink), source.manifest())
        sink.require_ready()
    assert report.checked == 3 * len(source.manifest().targets)


def test_no_sink_publishes_when_one_fails_and_the_error_says_which_had_no_fault(
    make_source: Make,
) -> None:
    sinks = sinks_for(make_source(1), "good", "bad")
    sync(make_source(1), sinks, bucket_bytes=BUCKET)
    engine_of(sinks[1]).on["finalize"] = lambda live: live.flip_byte("q.weight")
    with pytest.raises(ReadBackMismatch) as caught:
        sync(make_source(2), sinks, bucket_bytes=BUCKET)
    for sink in sinks:
        assert str(sink.version) == "run-a@1"
        with pytest.raises(SamplerPoisoned):
            sink.require_ready()
    health = caught.value.sink_health
    assert health["good"].startswith("no fault found, aborted because another sink failed")
    assert health["bad"].startswith("poisoned, last held run-a@1")
    assert any("sink good" in note for note in caught.value.__notes__)
    engine_of(sinks[1]).on.clear()
    sync(make_source(2), sinks, bucket_bytes=BUCKET)
    assert {str(sink.version) for sink in sinks} == {"run-a@2"}


def test_a_sink_that_published_is_told_as_healthy_when_another_could_not(
    make_source: Make,
) -> None:
    def broken(_: MemoryEngine) -> None:
        raise SyncError("cannot drop the cache")

    sinks = sinks_for(make_source(1), "good", "bad")
    engine_of(sinks[1]).on["publish"] = broken
    with pytest.raises(SyncError, match="cannot drop the cache") as caught:
        sync(make_source(1), sinks, bucket_bytes=BUCKET)
    assert caught.value.sink_health["good"] == "healthy, serves run-a@1"
    assert caught.value.sink_health["bad"].startswith("poisoned")


def test_a_source_that_fails_in_the_middle_aborts_every_sink(make_source: Make) -> None:
    class Broken(TensorSource):
        def tensor(self, name: str):  # type: ignore[no-untyped-def]
            if name == "scale":
                raise KeyError(name)
            return super().tensor(name)

    sinks = sinks_for(make_source(1), "a", "b")
    sync(make_source(1), sinks, bucket_bytes=BUCKET)
    good = make_source(2)
    broken = Broken(good._tensors, version=good._version, aliases=good._aliases)
    with pytest.raises(KeyError) as caught:
        sync(broken, sinks, bucket_bytes=BUCKET)
    assert len(caught.value.__notes__) == 2
    for sink in sinks:
        with pytest.raises(SamplerPoisoned, match="aborted: KeyError"):
            sink.require_ready()


def test_a_sink_that_refuses_at_begin_leaves_the_others_as_they_were(make_source: Make) -> None:
    sinks = sinks_for(make_source(1), "a", "b")
    sync(make_source(1), sinks, bucket_bytes=BUCKET)
    engine_of(sinks[1]).names.add("more")
    with pytest.raises(SyncError, match="more"):
        sync(make_source(2), sinks, bucket_bytes=BUCKET)
    for sink in sinks:
        sink.require_ready()
        assert_holds(engine_of(sink), make_source(1).manifest())


class Liar(TransactionalSink):
    """Says what it was told to say."""

    change: Callable[[CommitReceipt], CommitReceipt]

    def prepare(self, *, readback: Readback) -> CommitReceipt:
        return self.change(super().prepare(readback=readback))


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        (lambda r: replace(r, digests={**r.digests, "scale": "0" * 32}), ReadBackMismatch, "scale"),
        (lambda r: replace(r, digests={"scale": r.digests["scale"]}), ProtocolError, "1 names"),
        (lambda r: replace(r, version="run-a@0"), ProtocolError, "run-a@0"),
    ],
)
def test_a_receipt_is_compared_and_not_believed(make_source: Make, change, kind, told) -> None:
    engine = MemoryEngine(set(make_source(1).manifest().targets))
    liar = Liar(engine, version=None)
    liar.change = change
    with pytest.raises(kind, match=told):
        sync(make_source(1), [liar], bucket_bytes=BUCKET)
    assert engine.published == []
    with pytest.raises(SamplerPoisoned):
        liar.require_ready()


def test_sinks_must_be_there_and_have_names_of_their_own(make_source: Make) -> None:
    source = make_source(1)
    for sinks in ([], sinks_for(source, "a", "a")):
        with pytest.raises(ValueError, match="each with its own name"):
            sync(source, sinks, bucket_bytes=BUCKET)
