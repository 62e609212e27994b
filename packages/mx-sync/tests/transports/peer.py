"""The other processes of the tests. Run once, it forks one process for each line that it is told.

    sampler ADDRESS [KILL_AT_STEP]
    learner ADDRESS SHM_DIRECTORY KILL_AT_TENSOR

Forking spares each of them the seconds that importing torch takes; every one is a process of its
own, connected by a Unix socket, and dies by SIGKILL.
"""

from __future__ import annotations

import os
import signal
import sys
from multiprocessing.connection import Client, Connection
from pathlib import Path

import torch

from mx_quant.tensor import MXTensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from conftest import small_source

from mx_sync import (
    ShmReceiver,
    ShmSender,
    SinkClient,
    SinkServer,
    TensorSource,
    TransactionalSink,
    sync,
)
from mx_sync.channels import connection_call, serve_connection
from mx_sync.testing import MemoryEngine


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Dying(TensorSource):
    kill_at = ""

    def tensor(self, name: str) -> MXTensor | torch.Tensor:
        if name == self.kill_at:
            die()
        return super().tensor(name)


def sampler(connection: Connection, kill_at: str = "") -> None:
    engine = MemoryEngine(set(small_source(1).manifest().targets))
    if kill_at:
        engine.on[kill_at] = die
    sink = TransactionalSink(engine, version=None)
    serve_connection(connection, SinkServer(sink, ShmReceiver()))


def learner(connection: Connection, directory: str, kill_at: str) -> None:
    good = small_source(2)
    source = Dying(good._tensors, version=good._version, aliases=good._aliases)
    source.kill_at = kill_at
    sender = ShmSender(directory=directory)
    client = SinkClient(connection_call(connection, timeout_s=30), sender)
    sync(source, [client], bucket_bytes=8192)


def serve(control: Connection) -> None:
    """Fork a process for every line; it says its pid first. Ends when the tests hang up."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    roles = {"sampler": sampler, "learner": learner}
    while True:
        try:
            role, address, *rest = control.recv_bytes().decode().split()
        except EOFError:
            return
        if os.fork() == 0:
            control.close()
            connection = Client(address)
            connection.send_bytes(str(os.getpid()).encode())
            try:
                roles[role](connection, *rest)
            finally:
                os._exit(0)


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(Client(sys.argv[1]))
