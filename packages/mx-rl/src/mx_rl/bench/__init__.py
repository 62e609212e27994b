"""Measurements on the real engines, each checked for correctness first; one JSON line each.

sync: a whole sync, with and without read-back, beside a memcpy and a copy between two processes of
the same bytes. generation, update, step: in BF16 and MXFP8; generation beside plain vLLM, too.
"""

from mx_rl.bench.run import PARTS, run_benchmarks

__all__ = ["PARTS", "run_benchmarks"]
