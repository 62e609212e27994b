"""A real vLLM sampler in a process of its own, driven from a test through a pipe.

Control bytes of a sync travel as ``SinkServer`` bytes; everything else is the test's own calls.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mx_sync import ShmReceiver, ShmSender, SinkClient, SinkServer

TIMEOUT_S = 240.0


@dataclass(frozen=True)
class Sequence:
    """Token ids of a prompt and of what followed it."""

    prompt: list[int]
    completion: list[int]


class Sampler:
    """The parent's end."""

    def __init__(self, connection: multiprocessing.connection.Connection, process: Any) -> None:
        self._connection = connection
        self.process = process

    def ask(self, op: str, *arguments: Any, **named: Any) -> Any:
        """Call ``op`` over there; an exception comes back as RuntimeError with its traceback."""
        self._connection.send((op, arguments, named))
        if not self._connection.poll(TIMEOUT_S):
            raise TimeoutError(f"no answer to {op} within {TIMEOUT_S} s")
        kind, value = self._connection.recv()
        if kind == "error":
            raise RuntimeError(value)
        return value

    def client(self, sender: ShmSender) -> SinkClient:
        return SinkClient(lambda message: self.ask("handle", message), sender)

    def score(self, sequences: list[Sequence], *, temperature: float = 1.0) -> list[np.ndarray]:
        return self.ask("score", sequences, temperature=temperature)


@contextmanager
def sampler(path: Path, *, precision: str, version: str) -> Iterator[Sampler]:
    """Boot a sampler on ``path``; its process is gone when the block ends."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, str(path), precision, version))
    process.start()
    there.close()
    try:
        peer = Sampler(here, process)
        peer.ask("ready")
        yield peer
    finally:
        here.close()
        process.join(20)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(connection: Any, path: str, precision: str, version: str) -> None:
    from mx_vllm import VllmSampler

    try:
        live = VllmSampler.boot(
            path,
            precision=precision,
            max_model_len=256,
            max_num_seqs=32,
            seed=0,
            kv_cache_gib=0.25,
            version=version,
            threads=2,
        )
    except BaseException:
        connection.recv()
        connection.send(("error", traceback.format_exc()))
        return
    server = SinkServer(live.sink(), ShmReceiver())
    calls = {
        "ready": lambda: os.getpid(),
        "handle": server.handle,
        "generate": live.generate,
        "score": live.score,
        "version": lambda: live.version,
        "status": lambda: live.sink().status(),
        "flip": lambda name: _flip_after_finalize(live, name),
    }
    while True:
        try:
            op, arguments, named = connection.recv()
        except (EOFError, ConnectionError):
            break
        try:
            answer = ("ok", calls[op](*arguments, **named))
        except Exception:
            answer = ("error", traceback.format_exc())
        connection.send(answer)
    server.close()
    live.close()


def _flip_after_finalize(live: Any, name: str) -> None:
    """Once, after the next finalize: flip the first sign that the GEMM of tensor ``name`` reads.

    The value stays on the grid, so only its bytes can tell. ``name`` holds the operand's first row.
    """
    import torch

    from mx_vllm.methods import operand_of

    engine = live.sink()._engine
    place = engine.places[name]
    assert place.rows[0] == 0
    module = dict(engine.model.named_modules())[place.module]
    finalize = engine.finalize

    def corrupted(version: Any) -> None:
        finalize(version)
        operand = operand_of(module)
        operand.storage.view(-1).view(torch.uint8)[1 if operand.half else 3] ^= 0x80
        engine.finalize = finalize

    engine.finalize = corrupted
