"""What the contract suite does not say: the state machine itself."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from mx_sync import (
    Manifest,
    ProtocolError,
    Readback,
    ReadBackMismatch,
    SamplerPoisoned,
    SetMismatch,
    SyncInProgress,
    TensorSource,
    TransactionalSink,
    VersionRefused,
    WeightVersion,
    sync,
)
from mx_sync.testing import MemoryEngine
from mx_sync.testing.contract import write_all

Make = Callable[..., TensorSource]
BUCKET = 8192


def engine_for(source: TensorSource, **on: Callable[[MemoryEngine], None]) -> MemoryEngine:
    return MemoryEngine(set(source.manifest().targets), on=on)


def synced(make_source: Make, step: int = 3) -> tuple[MemoryEngine, TransactionalSink]:
    engine = engine_for(make_source(step))
    sink = TransactionalSink(engine, version=None)
    sync(make_source(step), [sink], bucket_bytes=BUCKET)
    return engine, sink


def fail(_: MemoryEngine) -> None:
    raise OSError("the engine broke")


def test_a_new_sink_holds_the_version_that_its_engine_was_booted_with(make_source: Make) -> None:
    booted = WeightVersion("r", 4)
    sink = TransactionalSink(engine_for(make_source(1)), version=booted)
    assert sink.version == booted
    assert sink.status().version == "r@4"
    sink.require_ready()


@pytest.mark.parametrize("step", ["open", "place:q.weight", "finalize", "publish"])
def test_an_engine_that_fails_at_any_step_leaves_a_poisoned_sink_that_tells_why(
    make_source: Make, step: str
) -> None:
    engine, sink = synced(make_source, 3)
    engine.on[step] = fail
    with pytest.raises(OSError, match="the engine broke"):
        sync(make_source(4), [sink], bucket_bytes=BUCKET)
    with pytest.raises(SamplerPoisoned) as caught:
        sink.require_ready()
    for fact in ("run-a@4 failed", "OSError: the engine broke", "last held run-a@3", "remedy"):
        assert fact in str(caught.value)
    assert caught.value.fields["held"] == "run-a@3"
    assert sink.version == WeightVersion("run-a", 3)
    assert engine.calls[-1] == "discard"
    assert engine.published == [WeightVersion("run-a", 3)]


def test_a_poisoned_sink_stays_poisoned_when_the_next_sync_ends_before_a_byte(
    make_source: Make,
) -> None:
    engine, sink = synced(make_source, 3)
    engine.on["finalize"] = fail
    with pytest.raises(OSError):
        sync(make_source(4), [sink], bucket_bytes=BUCKET)
    sink.begin(make_source(5).manifest())
    sink.abort("changed my mind")
    with pytest.raises(SamplerPoisoned, match="run-a@4 failed"):
        sink.require_ready()


def test_a_failing_discard_is_told_beside_the_first_failure(make_source: Make) -> None:
    engine, sink = synced(make_source)
    engine.on |= {"finalize": fail, "discard": lambda _: 1 / 0}
    with pytest.raises(OSError):
        sync(make_source(4), [sink], bucket_bytes=BUCKET)
    reason = sink.status().poisoned or ""
    assert "the engine broke" in reason
    assert "then discard: ZeroDivisionError" in reason


def test_an_interrupt_in_the_middle_poisons_too(make_source: Make) -> None:
    def interrupt(_: MemoryEngine) -> None:
        raise KeyboardInterrupt

    engine, sink = synced(make_source)
    engine.on["place:norm.weight"] = interrupt
    with pytest.raises(KeyboardInterrupt):
        sync(make_source(4), [sink], bucket_bytes=BUCKET)
    with pytest.raises(SamplerPoisoned):
        sink.require_ready()


def test_an_abort_before_a_byte_was_placed_restores_what_was(make_source: Make) -> None:
    _, sink = synced(make_source, 3)
    sink.begin(make_source(4).manifest())
    assert sink.status().open == "run-a@4"
    sink.abort("no")
    sink.require_ready()
    assert sink.status().version == "run-a@3"


def test_an_abort_that_the_engine_cannot_undo_poisons(make_source: Make) -> None:
    engine, sink = synced(make_source, 3)
    engine.on["discard"] = fail
    sink.begin(make_source(4).manifest())
    sink.abort("no")
    with pytest.raises(SamplerPoisoned, match="could not close"):
        sink.require_ready()


def test_an_abort_without_a_sync_changes_nothing(make_source: Make) -> None:
    engine, sink = synced(make_source)
    before = list(engine.calls)
    sink.abort("nothing is open")
    assert engine.calls == before
    sink.require_ready()


def test_a_prepared_version_is_not_served_until_it_is_published(make_source: Make) -> None:
    _, sink = synced(make_source, 3)
    sink.begin(make_source(4).manifest())
    write_all(sink, make_source(4), bucket_bytes=BUCKET)
    sink.prepare(readback=Readback.ALL)
    with pytest.raises(SyncInProgress, match="run-a@4"):
        sink.require_ready()
    assert sink.version == WeightVersion("run-a", 3)
    sink.publish()
    sink.require_ready()
    assert sink.version == WeightVersion("run-a", 4)


def test_a_second_begin_does_not_disturb_the_sync_that_is_open(make_source: Make) -> None:
    _, sink = synced(make_source, 3)
    sink.begin(make_source(4).manifest())
    with pytest.raises(SyncInProgress, match="run-a@4"):
        sync(make_source(5), [sink], bucket_bytes=BUCKET)
    write_all(sink, make_source(4), bucket_bytes=BUCKET)
    sink.commit(readback=Readback.ALL)
    assert sink.version == WeightVersion("run-a", 4)


@pytest.mark.parametrize("call", ["write", "prepare", "publish", "commit"])
def test_calls_without_a_sync_are_refused_and_do_not_poison(make_source: Make, call: str) -> None:
    _, sink = synced(make_source)
    arguments = {"prepare": {"readback": Readback.ALL}, "commit": {"readback": Readback.ALL}}
    positional = [None] if call == "write" else []
    with pytest.raises(ProtocolError, match="out of order"):
        getattr(sink, call)(*positional, **arguments.get(call, {}))
    sink.require_ready()


def test_publishing_what_was_not_prepared_is_refused(make_source: Make) -> None:
    engine, sink = synced(make_source, 3)
    sink.begin(make_source(4).manifest())
    write_all(sink, make_source(4), bucket_bytes=BUCKET)
    with pytest.raises(ProtocolError, match="expected: a sync that is prepared; found: open"):
        sink.publish()
    assert engine.published == [WeightVersion("run-a", 3)]


def test_a_version_may_repeat_but_not_go_backwards_unless_asked(make_source: Make) -> None:
    _, sink = synced(make_source, 3)
    sync(make_source(3), [sink], bucket_bytes=BUCKET)
    with pytest.raises(VersionRefused, match="expected: run-a@3 or later; found: run-a@2"):
        sync(make_source(2), [sink], bucket_bytes=BUCKET)
    sink.require_ready()
    sync(make_source(2), [sink], bucket_bytes=BUCKET, allow_rollback=True)
    assert sink.version == WeightVersion("run-a", 2)
    sync(make_source(1, run="run-b"), [sink], bucket_bytes=BUCKET)
    assert sink.version == WeightVersion("run-b", 1)


def test_all_names_that_do_not_match_are_told_at_once(make_source: Make) -> None:
    engine, sink = synced(make_source, 3)
    engine.names = (engine.names | {"x", "y"}) - {"lm_head.weight", "norm.weight"}
    with pytest.raises(SetMismatch) as caught:
        sink.begin(make_source(4).manifest())
    assert caught.value.missing == ("x", "y")
    assert caught.value.unexpected == ("lm_head.weight", "norm.weight")
    for name in ("x", "y", "lm_head.weight", "norm.weight"):
        assert name in str(caught.value)
    assert "open" not in engine.calls[-1:]


def test_every_tensor_that_differs_is_named_and_so_is_its_alias(make_source: Make) -> None:
    def flip(engine: MemoryEngine) -> None:
        engine.flip_byte("embed.weight", index=9)
        engine.flip_byte("block.weight", index=25_999)

    engine, sink = synced(make_source, 3)
    engine.on["finalize"] = flip
    with pytest.raises(ReadBackMismatch) as caught:
        sync(make_source(4), [sink], bucket_bytes=BUCKET)
    assert caught.value.names == ("embed.weight", "block.weight", "lm_head.weight")
    assert "run-a@4" in str(caught.value)


def test_a_tensor_read_back_in_another_form_is_told_as_such(make_source: Make) -> None:
    def widen(engine: MemoryEngine) -> None:
        engine.storage["norm.weight"] = engine.storage["norm.weight"].float()  # type: ignore[union-attr]

    engine, sink = synced(make_source, 3)
    engine.on["finalize"] = widen
    with pytest.raises(ReadBackMismatch, match=r"norm\.weight \(is fp32 \(7,\), not bf16 \(7,\)"):
        sync(make_source(4), [sink], bucket_bytes=BUCKET)


def test_a_tensor_that_cannot_be_read_back_is_a_mismatch_like_any_other(make_source: Make) -> None:
    class OffGrid(MemoryEngine):
        def read_back(self, name: str):  # type: ignore[no-untyped-def]
            if name == "q.weight":
                raise ValueError("0.3 is not on the grid")
            return super().read_back(name)

    sink = TransactionalSink(OffGrid(set(make_source(1).manifest().targets)), version=None)
    with pytest.raises(ReadBackMismatch, match=r"0\.3 is not on the grid") as caught:
        sync(make_source(1), [sink], bucket_bytes=BUCKET)
    assert caught.value.names == ("q.weight",)


def test_a_sampled_read_back_sees_a_flip_only_where_it_looks(make_source: Make) -> None:
    readback = Readback.sampled(0.5, seed=1)
    manifest = make_source(4).manifest()
    looked = readback.choose(tuple(manifest.targets), version=manifest.version)
    names = [name for name in manifest.names if name != "embed.weight"]
    seen = next(name for name in names if name in looked)
    unseen = next(name for name in names if name not in looked)
    for name, found in ((seen, True), (unseen, False)):
        engine, sink = synced(make_source, 3)
        engine.on["finalize"] = lambda live, name=name: live.flip_byte(name)
        if found:
            with pytest.raises(ReadBackMismatch, match=name):
                sync(make_source(4), [sink], bucket_bytes=BUCKET, readback=readback)
        else:
            report = sync(make_source(4), [sink], bucket_bytes=BUCKET, readback=readback)
            assert not report.bytes_equal
            assert report.checked == len(looked)


def test_a_flip_goes_unseen_only_when_read_back_is_switched_off(make_source: Make) -> None:
    engine, sink = synced(make_source, 3)
    engine.on["finalize"] = lambda live: live.flip_byte("q.weight")
    report = sync(make_source(4), [sink], bucket_bytes=BUCKET, readback=Readback.OFF)
    assert (report.bytes_equal, report.checked) == (False, 0)


def test_the_digest_of_the_manifest_is_what_counts(make_source: Make) -> None:
    source = make_source(4)
    manifest = source.manifest()
    lying = Manifest(
        manifest.version,
        tuple(replace(s, digest="0" * 32) if s.name == "scale" else s for s in manifest.tensors),
        manifest.aliases,
    )
    _, sink = synced(make_source, 3)
    sink.begin(lying)
    write_all(sink, source, bucket_bytes=BUCKET)
    with pytest.raises(ReadBackMismatch) as caught:
        sink.commit(readback=Readback.ALL)
    assert caught.value.names == ("scale",)
