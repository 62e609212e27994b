"""Client and server in one process: what travels, what is refused, and what silence becomes."""

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from mx_sync import (
    Readback,
    ReadBackMismatch,
    RemoteFailure,
    SamplerPoisoned,
    SetMismatch,
    ShmReceiver,
    ShmSender,
    SinkClient,
    SinkServer,
    SyncInProgress,
    TensorSource,
    TransactionalSink,
    TransportError,
    VersionRefused,
    sync,
)
from mx_sync.testing import Harness, MemoryEngine, SinkContract
from mx_sync.testing.contract import assert_holds

Make = Callable[..., TensorSource]
BUCKET = 8192


class Pair:
    """A client, and everything behind it."""

    def __init__(self, sender: ShmSender, names: set[str]) -> None:
        self.engine = MemoryEngine(names)
        self.sink = TransactionalSink(self.engine, version=None)
        self.server = SinkServer(self.sink, ShmReceiver())
        self.messages: list[bytes] = []
        self.client = SinkClient(self.call, sender, name="remote")

    def call(self, message: bytes) -> bytes:
        self.messages.append(message)
        return self.server.handle(message)

    def ask(self, **header: object) -> dict[str, object]:
        base = {"schema": "mx-sync/control/1", "id": 1}
        return json.loads(self.server.handle(json.dumps(base | header).encode()))


@pytest.fixture
def pair(make_source: Make, shm: Path) -> Iterator[Pair]:
    with ShmSender(directory=str(shm)) as sender:
        yield Pair(sender, set(make_source(1).manifest().targets))


def test_a_sync_through_messages_equals_a_sync_without_them(pair: Pair, make_source: Make) -> None:
    report = sync(make_source(1), [pair.client], bucket_bytes=BUCKET)
    assert report.bytes_equal
    assert pair.client.status().version == "run-a@1"
    ops = [json.loads(message.split(b"\n")[0])["op"] for message in pair.messages]
    assert ops[0] == "begin"
    assert ops.count("attach") == 2
    assert ops.count("write") == report.buckets
    assert ops[-3:] == ["prepare", "publish", "status"]


def test_a_warm_sync_attaches_nothing(pair: Pair, make_source: Make) -> None:
    sync(make_source(1), [pair.client], bucket_bytes=BUCKET)
    pair.messages.clear()
    sync(make_source(2), [pair.client], bucket_bytes=BUCKET)
    assert not any(b'"attach"' in message for message in pair.messages)


def test_messages_carry_no_pickle_and_no_weights(pair: Pair, make_source: Make) -> None:
    sync(make_source(1), [pair.client], bucket_bytes=BUCKET)
    for message in pair.messages:
        for line in message.decode("ascii").splitlines():
            json.loads(line)


def test_typed_errors_arrive_as_themselves(pair: Pair, make_source: Make) -> None:
    sync(make_source(2), [pair.client], bucket_bytes=BUCKET)
    with pytest.raises(VersionRefused):
        sync(make_source(1), [pair.client], bucket_bytes=BUCKET)
    sync(make_source(1), [pair.client], bucket_bytes=BUCKET, allow_rollback=True)
    pair.engine.on["finalize"] = lambda live: live.flip_byte("q.weight")
    with pytest.raises(ReadBackMismatch) as caught:
        sync(make_source(3), [pair.client], bucket_bytes=BUCKET)
    assert caught.value.names == ("q.weight",)
    with pytest.raises(SamplerPoisoned, match="run-a@3 failed"):
        pair.client.require_ready()
    pair.engine.names.add("one.more")
    with pytest.raises(SetMismatch) as missing:
        pair.client.begin(make_source(3).manifest())
    assert missing.value.missing == ("one.more",)


def test_an_exception_of_the_engine_arrives_with_its_name(pair: Pair, make_source: Make) -> None:
    pair.engine.on["place:scale"] = lambda _: 1 / 0
    with pytest.raises(RemoteFailure, match=r"builtins\.ZeroDivisionError: division by zero"):
        sync(make_source(1), [pair.client], bucket_bytes=BUCKET)
    with pytest.raises(SamplerPoisoned, match="ZeroDivisionError"):
        pair.sink.require_ready()


def test_closing_the_server_aborts_an_open_sync_and_unmaps(pair: Pair, make_source: Make) -> None:
    sync(make_source(1), [pair.client], bucket_bytes=BUCKET)
    pair.client.begin(make_source(2).manifest())
    with pytest.raises(SyncInProgress):
        pair.client.require_ready()
    pair.server.close()
    pair.sink.require_ready()
    sync(make_source(2), [pair.client], bucket_bytes=BUCKET)
    pair.client.require_ready()


@pytest.mark.parametrize("error", [ConnectionResetError, BrokenPipeError, EOFError, TimeoutError])
def test_silence_is_a_transport_error_that_names_sink_and_version(
    pair: Pair, make_source: Make, error: type[Exception]
) -> None:
    def broken(message: bytes) -> bytes:
        if b'"op":"write"' in message:
            raise error("gone")
        return pair.call(message)

    client = SinkClient(broken, pair.client.sender, name="left")
    with pytest.raises(TransportError, match=rf"left.*'write': {error.__name__}") as caught:
        sync(make_source(7), [client], bucket_bytes=BUCKET)
    assert caught.value.fields == {"sink": "left", "version": "run-a@7", "op": "write"}
    assert pair.sink.status().open is None


@pytest.mark.parametrize(
    "answer", [b"", b"null", b"{}", b'{"schema":"mx-sync/control/1","id":99,"result":{}}']
)
def test_an_answer_to_something_else_is_a_transport_error(
    pair: Pair, make_source: Make, answer: bytes
) -> None:
    client = SinkClient(lambda _: answer, pair.client.sender)
    with pytest.raises(TransportError, match="a late answer after a timeout"):
        client.status()


def test_a_read_back_choice_survives_the_way(pair: Pair, make_source: Make) -> None:
    readback = Readback.sampled(0.4, seed=3)
    report = sync(make_source(1), [pair.client], bucket_bytes=BUCKET, readback=readback)
    manifest = make_source(1).manifest()
    chosen = readback.choose(tuple(manifest.targets), version=manifest.version)
    assert tuple(report.receipts["remote"].digests) == chosen
    assert not report.bytes_equal


@pytest.mark.parametrize(
    "header",
    [
        {"op": "eval"},
        {"op": 3},
        {"op": "write"},
        {"op": "write", "segment": "0" * 32, "nbytes": 8, "slices": [], "sequence": 0},
        {"op": "attach", "segment": "x", "place": {}, "live": []},
        {"op": "attach", "segment": "x", "place": {"pid": 1}, "live": []},
        {"op": "attach", "segment": "0" * 32, "live": [1]}
        | {"place": {"pid": 1, "fd": 0, "device": 0, "inode": 0, "nbytes": 1}},
        {"op": "prepare", "readback": {"mode": "all"}},
        {"op": "prepare", "readback": {"mode": "sampled", "fraction": "x", "seed": 0}},
        {"op": "commit", "readback": {"mode": "sampled", "fraction": 7, "seed": 0}},
        {"op": "abort"},
        {"op": "begin", "allow_rollback": False, "live": []},
        {"op": "status", "id": "1"},
        {"op": "status", "schema": "mx-sync/control/2"},
    ],
)
def test_a_malformed_request_is_answered_with_an_error_and_changes_nothing(
    pair: Pair, make_source: Make, header: dict[str, object]
) -> None:
    sync(make_source(1), [pair.client], bucket_bytes=BUCKET)
    answer = pair.ask(**header)
    assert "error" in answer
    assert "result" not in answer
    pair.sink.require_ready()


def test_random_damage_to_requests_never_escapes_and_never_publishes_wrong_bytes(
    pair: Pair, make_source: Make
) -> None:
    manifest = make_source(2).manifest()
    for _ in range(pair.client.sender.slots + 1):
        pair.messages.clear()
        sync(make_source(2), [pair.client], bucket_bytes=1 << 20, allow_rollback=True)
    recorded = list(pair.messages)
    rng = random.Random(0)
    published = refused = 0
    for _ in range(300):
        for message in recorded:
            data = bytearray(message)
            if rng.random() < 0.2:
                data[rng.randrange(len(data))] = rng.randrange(256)
            refused += "error" in json.loads(pair.server.handle(bytes(data)))
            if len(pair.engine.published) > published:
                published = len(pair.engine.published)
                assert_holds(pair.engine, manifest)
    assert published > 50
    assert refused > 200
    pair.client.abort("the damage is over")
    sync(make_source(3), [pair.client], bucket_bytes=BUCKET, allow_rollback=True)
    pair.client.require_ready()


class TestMemoryEngineBehindMessages(SinkContract):
    @pytest.fixture
    def harness(self, pair: Pair, make_source: Make) -> Harness:
        plain = Harness(pair.engine, make_source, bucket_bytes=BUCKET)
        return replace(plain, make_sink=lambda: _again(pair))


def _again(pair: Pair) -> SinkClient:
    pair.server = SinkServer(TransactionalSink(pair.engine, version=None), ShmReceiver())
    return pair.client
