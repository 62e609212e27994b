"""A whole sync between two processes, beside plain copies of the same bytes.

The model has the shapes of SmolLM2-135M: 210 linear layers on the MXFP8 grid and 62 bf16 tensors,
166 MB. Before anything is timed, the sampler's read-back must equal the learner's bytes and a
flipped byte must be found. Prints one JSON line; times are medians, in seconds.

    python benchmarks/bench_sync.py [--rounds 9] [--bucket-mib 32] [--threads 1]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict
from multiprocessing.connection import Connection
from typing import Any

import torch

from mx_quant.grids import MXFP8
from mx_quant.tensor import MXTensor
from mx_sync import (
    Readback,
    ReadBackMismatch,
    ShmReceiver,
    ShmSender,
    SinkClient,
    SinkServer,
    SyncReport,
    TensorSource,
    TransactionalSink,
    WeightVersion,
    sync,
)
from mx_sync.channels import connection_call, serve_connection
from mx_sync.testing import MemoryEngine
from mx_sync.transports.shm import SegmentPlace

HIDDEN, FFN, LAYERS, KV, VOCAB = 576, 1536, 30, 192, 49152
RUN = "bench"


def smollm2_shapes() -> tuple[dict[str, tuple[int, int]], dict[str, tuple[int, ...]]]:
    """Name -> shape of the linear layers, and of the tensors that stay in bf16."""
    linear: dict[str, tuple[int, int]] = {}
    plain: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (VOCAB, HIDDEN)}
    for i in range(LAYERS):
        at = f"model.layers.{i}."
        linear |= {f"{at}self_attn.{p}_proj.weight": (HIDDEN, HIDDEN) for p in "qo"}
        linear |= {f"{at}self_attn.{p}_proj.weight": (KV, HIDDEN) for p in "kv"}
        linear |= {f"{at}mlp.{p}_proj.weight": (FFN, HIDDEN) for p in ("gate", "up")}
        linear[f"{at}mlp.down_proj.weight"] = (HIDDEN, FFN)
        plain |= {f"{at}{n}.weight": (HIDDEN,) for n in ("input_layernorm", "post_attention_norm")}
    plain["model.norm.weight"] = (HIDDEN,)
    return linear, plain


def make_source(step: int) -> TensorSource:
    """Random bytes: moving and comparing them costs what real weights cost."""
    torch.manual_seed(step)
    linear, plain = smollm2_shapes()
    tensors: dict[str, MXTensor | torch.Tensor] = {
        name: MXTensor.from_bytes(
            torch.randint(0, 256, shape, dtype=torch.uint8),
            torch.randint(0, 256, (shape[0], shape[1] // 32), dtype=torch.uint8),
            grid=MXFP8,
        )
        for name, shape in linear.items()
    }
    tensors |= {name: torch.randn(shape).bfloat16() for name, shape in plain.items()}
    aliases = [("lm_head.weight", "model.embed_tokens.weight")]
    return TensorSource(tensors, version=WeightVersion(RUN, step), aliases=aliases)


def sampler(pipe: Connection, names: set[str], threads: int, flip: str | None) -> None:
    torch.set_num_threads(threads)
    engine = MemoryEngine(names)
    if flip is not None:
        engine.on["finalize"] = lambda live: live.flip_byte(flip)
    sink = TransactionalSink(engine, version=None)
    serve_connection(pipe, SinkServer(sink, ShmReceiver()))


def copier(pipe: Connection, nbytes: int, threads: int) -> None:
    """The other side of the plain copy: map what is offered, copy it out whenever told to."""
    torch.set_num_threads(threads)
    receiver = ShmReceiver()
    message = json.loads(pipe.recv_bytes())
    segment, place = message["segment"], SegmentPlace(**message["place"])
    receiver.attach(segment, place=place, live=[segment])
    shared, own = receiver.view(segment, nbytes=nbytes), torch.empty(nbytes, dtype=torch.uint8)
    pipe.send_bytes(b"ready")
    while pipe.recv_bytes() == b"copy":
        own.copy_(shared)
        pipe.send_bytes(own[-8:].numpy().tobytes())


def median_s(call: Callable[[], object], rounds: int) -> float:
    call()
    call()
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken)


class Peer:
    """A process at the other end of a pipe, joined at exit."""

    def __init__(self, target: Callable[..., None], *args: object) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        self._process = context.Process(target=target, args=(other, *args))
        self._process.start()
        other.close()

    def __enter__(self) -> Connection:
        return self.pipe

    def __exit__(self, *_: object) -> None:
        self.pipe.close()
        self._process.join()


def bench_copies(nbytes: int, rounds: int, threads: int) -> dict[str, float]:
    source = torch.randint(0, 256, (nbytes,), dtype=torch.uint8)
    own = torch.empty_like(source)
    memcpy = median_s(lambda: own.copy_(source), rounds)
    with Peer(copier, nbytes, threads) as pipe, ShmSender(slots=1) as sender:
        shared = sender.buffer(nbytes)
        segment = sender.locate(shared)
        where = {"segment": segment.id, "place": asdict(segment.place)}
        pipe.send_bytes(json.dumps(where).encode())
        pipe.recv_bytes()

        def there() -> None:
            shared[:nbytes].copy_(source)
            pipe.send_bytes(b"copy")
            if pipe.recv_bytes() != source[-8:].numpy().tobytes():
                raise AssertionError("the plain copy arrived wrong")

        two_process = median_s(there, rounds)
        pipe.send_bytes(b"stop")
    return {"memcpy_s": memcpy, "shm_copy_s": two_process}


def bench_sync(
    source: TensorSource, bucket_bytes: int, rounds: int, threads: int, *, readback: Readback
) -> tuple[float, SyncReport]:
    names = set(source.manifest().targets)
    with Peer(sampler, names, threads, None) as pipe, ShmSender() as sender:
        client = SinkClient(connection_call(pipe, timeout_s=60), sender)
        reports = []

        def once() -> None:
            reports.append(sync(source, [client], bucket_bytes=bucket_bytes, readback=readback))

        checked = sync(source, [client], bucket_bytes=bucket_bytes)
        if not checked.bytes_equal:
            raise AssertionError("the read-back does not cover every name")
        seconds = median_s(once, rounds)
    return seconds, min(reports, key=lambda report: abs(report.seconds - seconds))


def check_that_it_can_fail(source: TensorSource, bucket_bytes: int, threads: int) -> None:
    names, wrong = set(source.manifest().targets), "model.layers.7.mlp.up_proj.weight"
    with Peer(sampler, names, threads, wrong) as pipe, ShmSender() as sender:
        client = SinkClient(connection_call(pipe, timeout_s=60), sender)
        try:
            sync(source, [client], bucket_bytes=bucket_bytes)
        except ReadBackMismatch as error:
            if error.names == (wrong,):
                return
            raise
    raise AssertionError("a flipped byte was not found")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--bucket-mib", type=int, default=32)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    source = make_source(1)
    bucket_bytes = args.bucket_mib * 2**20
    check_that_it_can_fail(source, bucket_bytes, args.threads)
    copies = bench_copies(source.manifest().nbytes, args.rounds, args.threads)
    result: dict[str, Any] = {"bench": "sync", "bucket_mib": args.bucket_mib} | copies
    for label, readback in (("sync", Readback.ALL), ("sync_no_readback", Readback.OFF)):
        seconds, report = bench_sync(
            source, bucket_bytes, args.rounds, args.threads, readback=readback
        )
        result |= {f"{label}_s": seconds, f"{label}_over_shm_copy": seconds / copies["shm_copy_s"]}
        result[f"{label}_phases_s"] = dict(report.phase_seconds)
        result |= {"bytes": report.bytes, "tensors": report.tensors, "buckets": report.buckets}
    print(json.dumps({k: round(v, 5) if isinstance(v, float) else v for k, v in result.items()}))


if __name__ == "__main__":
    main()
