"""What moving bytes costs at the least: a memcpy, and a copy into another process's memory."""

from __future__ import annotations

from multiprocessing.connection import Connection

import torch

from mx_rl.bench.clock import median_seconds

_TAIL = 64


def copy_seconds(nbytes: int, *, rounds: int, threads: int) -> dict[str, float]:
    """Median seconds of both copies of ``nbytes``. Raises RuntimeError if bytes arrive wrong."""
    torch.set_num_threads(threads)
    source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    own = torch.empty_like(source)
    memcpy = median_seconds(lambda: own.copy_(source), rounds=rounds)
    if not torch.equal(own, source):
        raise RuntimeError("memcpy: the copy differs from its source")
    return {"memcpy_seconds": memcpy, "shm_copy_seconds": _between(source, rounds, threads)}


def _between(source: torch.Tensor, rounds: int, threads: int) -> float:
    context = torch.multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    shared = torch.empty_like(source).share_memory_()
    peer = context.Process(target=_copy_out, args=(there, shared, threads))
    peer.start()
    there.close()
    try:
        here.recv_bytes()

        def once() -> None:
            shared.copy_(source)
            here.send_bytes(b"copy")
            if here.recv_bytes() != bytes(source[-_TAIL:].tolist()):
                raise RuntimeError("shared-memory copy: other bytes arrived")

        return median_seconds(once, rounds=rounds)
    finally:
        here.close()
        peer.join(30)
        if peer.is_alive():
            peer.kill()
            peer.join()


def _copy_out(pipe: Connection, shared: torch.Tensor, threads: int) -> None:
    torch.set_num_threads(threads)
    own = torch.empty_like(shared)
    pipe.send_bytes(b"ready")
    try:
        while True:
            pipe.recv_bytes()
            own.copy_(shared)
            pipe.send_bytes(bytes(own[-_TAIL:].tolist()))
    except (EOFError, ConnectionError):
        return  # the other end is done
