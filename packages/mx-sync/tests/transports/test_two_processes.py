"""Two real processes, shared memory between them, and either of them killed in the middle."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, Listener
from pathlib import Path

import pytest

from mx_sync import (
    SamplerPoisoned,
    ShmReceiver,
    ShmSender,
    SinkClient,
    SinkServer,
    SyncInProgress,
    TensorSource,
    TransactionalSink,
    TransportError,
    WeightVersion,
    sync,
)
from mx_sync.channels import connection_call, serve_connection
from mx_sync.testing import MemoryEngine
from mx_sync.testing.contract import assert_holds

Make = Callable[..., TensorSource]
PEER = Path(__file__).with_name("peer.py")
BUCKET = 8192


class Peers:
    """Starts processes and sees them end."""

    def __init__(self, control: Connection, folder: Path) -> None:
        self._control = control
        self._folder = folder
        self._count = 0

    @contextmanager
    def start(self, role: str, *args: object, killed: bool = False) -> Iterator[Connection]:
        """A process with the role, connected; at the end it must be gone by itself."""
        self._count += 1
        address = str(self._folder / str(self._count))
        with Listener(address, family="AF_UNIX") as listener:
            self._control.send_bytes(" ".join([role, address, *map(str, args)]).encode())
            with listener.accept() as connection:
                pid = int(connection.recv_bytes())
                yield connection
                if killed:
                    wait_until_gone(pid)
        wait_until_gone(pid)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < deadline, f"process {pid} is still there"
        time.sleep(0.005)


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Peers]:
    folder = tmp_path_factory.mktemp("s")
    with Listener(str(folder / "control"), family="AF_UNIX") as listener:
        process = subprocess.Popen([sys.executable, str(PEER), str(listener.address)])
        with listener.accept() as control:
            yield Peers(control, folder)
        assert process.wait(timeout=60) == 0


def test_versions_move_between_processes_and_every_byte_is_equal(
    make_source: Make, shm: Path, peers: Peers
) -> None:
    with (
        peers.start("sampler") as connection,
        ShmSender(directory=str(shm)) as sender,
    ):
        client = SinkClient(connection_call(connection, timeout_s=30), sender)
        segments = set()
        for step in (1, 2, 3):
            report = sync(make_source(step), [client], bucket_bytes=BUCKET)
            assert report.bytes_equal
            assert report.checked == len(make_source(step).manifest().targets)
            assert client.status().version == f"run-a@{step}"
            client.require_ready()
            assert list(shm.iterdir()) == []
            segments |= set(sender.live)
        assert len(segments) == sender.slots


@pytest.mark.parametrize("step", ["open", "place:q.weight", "place:scale", "finalize", "publish"])
def test_a_sampler_killed_in_the_middle_is_named_and_leaves_nothing(
    make_source: Make, shm: Path, peers: Peers, step: str
) -> None:
    with ShmSender(directory=str(shm)) as sender:
        with peers.start("sampler", step, killed=True) as connection:
            client = SinkClient(connection_call(connection, timeout_s=30), sender, name="left")
            with pytest.raises(TransportError, match=r"left did not answer.*run-a@1") as caught:
                sync(make_source(1), [client], bucket_bytes=BUCKET)
            assert caught.value.sink_health["left"].startswith("unknown (TransportError")
        assert list(shm.iterdir()) == []


def test_training_goes_on_with_a_sampler_that_was_started_again(
    make_source: Make, shm: Path, peers: Peers
) -> None:
    with ShmSender(directory=str(shm)) as sender:
        with peers.start("sampler", "place:scale", killed=True) as connection:
            client = SinkClient(connection_call(connection, timeout_s=30), sender)
            with pytest.raises(TransportError):
                sync(make_source(1), [client], bucket_bytes=BUCKET)
        with peers.start("sampler") as connection:
            client = SinkClient(connection_call(connection, timeout_s=30), sender)
            assert sync(make_source(1), [client], bucket_bytes=BUCKET).bytes_equal
    assert list(shm.iterdir()) == []


@pytest.mark.parametrize("kill_at", ["embed.weight", "block.weight", "scale"])
def test_a_learner_killed_in_the_middle_leaves_nothing_and_a_sampler_that_refuses(
    make_source: Make, shm: Path, peers: Peers, kill_at: str
) -> None:
    engine = MemoryEngine(set(make_source(1).manifest().targets))
    sink = TransactionalSink(engine, version=None)
    sync(make_source(1), [sink], bucket_bytes=BUCKET)
    receiver = ShmReceiver()
    with peers.start("learner", shm, kill_at, killed=True) as connection:
        serve_connection(connection, SinkServer(sink, receiver))
    assert list(shm.iterdir()) == []
    assert receiver.attached == ()
    assert sink.version == WeightVersion("run-a", 1)
    if kill_at == "embed.weight":
        # Killed before a byte was placed: what was held is whole, and is still served.
        sink.require_ready()
        assert_holds(engine, make_source(1).manifest())
    else:
        with pytest.raises(SamplerPoisoned, match="the channel was closed"):
            sink.require_ready()
    sync(make_source(2), [sink], bucket_bytes=BUCKET)
    sink.require_ready()
    assert_holds(engine, make_source(2).manifest())


def test_a_sampler_whose_learner_is_silent_refuses_to_serve(make_source: Make) -> None:
    engine = MemoryEngine(set(make_source(1).manifest().targets))
    sink = TransactionalSink(engine, version=None)
    sink.begin(make_source(1).manifest())
    with pytest.raises(SyncInProgress, match="abort the sync if its sender is gone"):
        sink.require_ready()


def test_samplers_may_share_one_senders_memory(make_source: Make, shm: Path, peers: Peers) -> None:
    with ShmSender(directory=str(shm)) as sender, peers.start("sampler") as first:
        clients = [SinkClient(connection_call(first, timeout_s=30), sender, name="first")]
        sync(make_source(1), clients, bucket_bytes=BUCKET)
        segments = sender.live
        with peers.start("sampler") as second:
            clients.append(SinkClient(connection_call(second, timeout_s=30), sender, name="second"))
            report = sync(make_source(2), clients, bucket_bytes=BUCKET)
            assert set(report.receipts) == {"first", "second"}
            assert report.bytes_equal
            assert sender.live == segments
