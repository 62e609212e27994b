"""``python -m mx_quant.bench``: one JSON line per measurement, each checked for correctness first.

``gbps`` counts the bytes read per second: of the input for quantize and fake_quantize, of elements
and scales for dequantize and digest. ``memcpy_gbps`` is a copy of the same bytes in the same run
into memory that exists, ``ratio`` the quotient. Outputs are allocated by every call, as in use.
Lines with op ``linear`` and ``wgrad`` report ``gflops`` beside ``torch_gflops``, torch's own fp32
GEMM of the same shape without quantization.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor

from mx_quant import eager, native, reference
from mx_quant.digest import digest
from mx_quant.gemm import selected, weight_gradient
from mx_quant.grids import MXFP8
from mx_quant.linear import LinearWeights, linear_forward
from mx_quant.quantize import dequantize, fake_quantize, quantize, quantize_both
from mx_quant.report import compare

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def best_seconds(call: Callable[[], object], *, repeats: int) -> float:
    """The shortest of ``repeats`` runs after one that warms up."""
    call()
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def _check(name: str, good: bool) -> None:
    if not good:
        raise SystemExit(f"{name} differs from the reference: no timing is worth anything")


def check_backend(dtype: torch.dtype) -> None:
    """Compare every timed operation with the reference on a small tensor of mixed data."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(64, 256, generator=generator).mul_(
        torch.randn(64, 1, generator=generator).mul(12).exp2()
    )
    x[0, :3] = torch.tensor([float("nan"), float("inf"), 0.0])
    x = x.to(dtype)
    row, column = quantize_both(x, grid=MXFP8)
    for t, axis in ((row, -1), (column, -2), (quantize(x, grid=MXFP8), -1)):
        expected = reference.quantize(x, grid=MXFP8, axis=axis)
        _check("quantize", compare(t, expected).same_bytes)
        values = reference.dequantize(expected, dtype=dtype)
        _check("dequantize", compare(dequantize(t, dtype=dtype), values).same_values)
        fake = fake_quantize(x, grid=MXFP8, axis=axis)
        _check("fake_quantize", compare(fake, values).same_values)


def memory_lines(
    *, mebibytes: int, dtype: str, threads: int, repeats: int
) -> Iterator[dict[str, object]]:
    """Lines of the operations that are bound by memory."""
    torch.set_num_threads(threads)
    kind = DTYPES[dtype]
    columns = 2048
    rows = mebibytes * 2**20 // (columns * kind.itemsize) // 32 * 32
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).to(kind)
    row, target = quantize(x, grid=MXFP8), torch.empty_like(x)
    calls: dict[str, tuple[Callable[[], object], int]] = {
        "quantize_rowwise": (lambda: quantize(x, grid=MXFP8), x.nbytes),
        "quantize_columnwise": (lambda: quantize(x, grid=MXFP8, axis=-2), x.nbytes),
        "quantize_both": (lambda: quantize_both(x, grid=MXFP8), x.nbytes),
        "dequantize": (lambda: dequantize(row, dtype=kind), row.nbytes),
        "fake_quantize": (lambda: fake_quantize(x, grid=MXFP8), x.nbytes),
        "digest": (lambda: digest(row), row.nbytes),
    }
    copy = x.nbytes / best_seconds(lambda: target.copy_(x), repeats=repeats) / 1e9
    backend = "native " + native.load().level if native.available() else "eager"
    if native.available():
        small = x[: max(32, rows // 16 // 32 * 32)]
        yield _line(
            "quantize_rowwise",
            "eager",
            dtype,
            small.nbytes,
            threads,
            copy,
            best_seconds(lambda: eager.quantize(small, grid=MXFP8, axis=-1), repeats=1),
        )
    for op, (call, nbytes) in calls.items():
        yield _line(op, backend, dtype, nbytes, threads, copy, best_seconds(call, repeats=repeats))


def _line(
    op: str, backend: str, dtype: str, nbytes: int, threads: int, copy: float, seconds: float
) -> dict[str, object]:
    rate = nbytes / seconds / 1e9
    return {
        "op": op,
        "backend": backend,
        "dtype": dtype,
        "bytes": nbytes,
        "threads": threads,
        "gbps": round(rate, 3),
        "memcpy_gbps": round(copy, 3),
        "ratio": round(rate / copy, 3),
    }


def linear_lines(*, threads: int, repeats: int) -> Iterator[dict[str, object]]:
    """Lines of the emulated linear layer, 576 x 1536, over the number of rows."""
    torch.set_num_threads(threads)
    generator = torch.Generator().manual_seed(2)
    inputs, outputs = 576, 1536
    w = torch.randn(outputs, inputs, generator=generator).bfloat16()
    weights, plain = LinearWeights.quantize(w, grid=MXFP8), LinearWeights.plain(w)
    wide = w.float()
    for rows in (1, 8, 32, 64, 512, 2048):
        x = torch.randn(rows, inputs, generator=generator).bfloat16()
        dy = torch.randn(rows, outputs, generator=generator).bfloat16()
        _check_linear(x, weights)
        flops, wide_x, wide_dy = 2e-9 * rows * inputs * outputs, x.float(), dy.float()

        gradient = partial(
            weight_gradient, dy, x, grid=MXFP8, grad_grid=MXFP8, dtype=torch.bfloat16
        )
        torch_linear = partial(torch.nn.functional.linear, wide_x, wide)
        cases: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
            "linear_mxfp8": (partial(linear_forward, x, weights.forward, grid=MXFP8), torch_linear),
            "linear_plain": (partial(linear_forward, x, plain.forward, grid=None), torch_linear),
            "wgrad_mxfp8": (gradient, partial(torch.mm, wide_dy.t(), wide_x)),
        }
        for op, (ours, theirs) in cases.items():
            yield {
                "op": op,
                "backend": selected().value,
                "dtype": "bf16",
                "rows": rows,
                "threads": threads,
                "gflops": round(flops / best_seconds(ours, repeats=repeats), 2),
                "torch_gflops": round(flops / best_seconds(theirs, repeats=repeats), 2),
            }


def _check_linear(x: Tensor, weights: LinearWeights) -> None:
    values = reference.dequantize(reference.quantize(x, grid=MXFP8)).double()
    expected = values @ weights.forward.matrix.double().t()
    got = linear_forward(x, weights.forward, grid=MXFP8).double()
    _check("linear", bool((got - expected).abs().max() <= 2**-8 * expected.abs().max()))


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m mx_quant.bench", description=__doc__)
    parser.add_argument("--mebibytes", type=int, default=64, help="size of the input (64)")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="default: all")
    parser.add_argument("--threads", type=int, action="append", help="default: 1 and 2")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--no-linear", action="store_true", help="leave out the GEMMs")
    options = parser.parse_args(arguments)
    before = torch.get_num_threads()
    for threads in options.threads or [1, 2]:
        for dtype in options.dtype or list(DTYPES):
            check_backend(DTYPES[dtype])
            for line in memory_lines(
                mebibytes=options.mebibytes, dtype=dtype, threads=threads, repeats=options.repeats
            ):
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()
        if not options.no_linear:
            for line in linear_lines(threads=threads, repeats=options.repeats):
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()
    torch.set_num_threads(before)
    return 0


if __name__ == "__main__":
    sys.exit(main())
