"""The measurements, their checks, and the order in which they share one pair of engines."""

from __future__ import annotations

import json
import os
import random
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mx_rl.advantage import group_advantages
from mx_rl.bench.clock import median_seconds
from mx_rl.bench.copies import copy_seconds
from mx_rl.bench.plain_vllm import plain_vllm_seconds
from mx_rl.config import Config, Precision
from mx_rl.errors import UserError, did_you_mean
from mx_rl.models import prepare_model
from mx_rl.overrides import apply_overrides
from mx_rl.parity import parity
from mx_rl.precision_table import PRECISIONS
from mx_rl.ray import RayRuntime, RayTeam
from mx_rl.rundir import RunDirectory
from mx_rl.types import Batch, Completion, Group, Prompt, Rollout, SampleRequest, Scored

PROMPT_TOKENS = 32
KL_LIMIT = 0.2
"""No engine that computes the right model is this far off in any pair of precisions."""

Line = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Bench:
    """A live team in one precision, and what a measurement needs besides."""

    team: RayTeam
    config: Config
    runtime: RayRuntime
    model: Path
    precision: Precision
    rounds: int

    def request(self, prompts: int, *, n: int, max_tokens: int) -> SampleRequest:
        """Random prompts of ``PROMPT_TOKENS`` tokens, always the same; nothing stops early."""
        draw = random.Random(0)
        return SampleRequest(
            prompts=tuple(
                tuple(draw.randrange(300, 500) for _ in range(PROMPT_TOKENS))
                for _ in range(prompts)
            ),
            n=n,
            max_tokens=max_tokens,
            temperature=1.0,
            seed=0,
            stop_token_ids=(),
        )


def run_benchmarks(model: str, *, only: Sequence[str] | None, rounds: int, cache: Path) -> int:
    """Print one JSON line for each measurement; raises if one is not correct."""
    parts = list(PARTS) if only is None else list(only)
    for part in parts:
        if part not in PARTS:
            raise UserError(
                f"--only {part}: no such part{did_you_mean(part, PARTS)} (known: "
                f"{', '.join(PARTS)})"
            )
    if rounds < 1:
        raise UserError(f"--rounds {rounds}: expected at least 1")
    path = prepare_model(model, cache=cache)
    for precision in PRECISIONS:
        with tempfile.TemporaryDirectory(prefix="mx-bench-") as folder:
            for part, line in _measure(path, precision, parts, rounds, folder):
                print(json.dumps({"bench": part, "precision": precision, **line}), flush=True)
    return 0


def _measure(
    model: Path, precision: Precision, parts: Sequence[str], rounds: int, folder: str
) -> Iterator[tuple[str, Line]]:
    config = apply_overrides(
        Config(),
        [
            f"model.path={model}",
            f"precision.learner={precision}",
            f"precision.sampler={precision}",
            f"run.dir={folder}",
            "run.name=bench",
        ],
    )
    with ExitStack() as stack:
        run = RunDirectory.create(config)
        stack.callback(run.close)
        runtime = stack.enter_context(RayRuntime(config.ray))
        team = RayTeam(config, runtime=runtime, run=run, model=model)
        stack.callback(team.close)
        bench = Bench(team, config, runtime, model, precision, rounds)
        for part in parts:
            for line in PARTS[part](bench):
                yield part, _rounded(line)


def bench_sync(bench: Bench) -> Iterator[Line]:
    """Whole syncs of one version, and plain copies of as many bytes."""
    first = bench.team.sync()
    if not first.bytes_equal:
        raise RuntimeError("sync: not every tensor was read back equal")
    results = [bench.team.sync() for _ in range(max(5, bench.rounds))]
    middle = sorted(results, key=lambda result: result.seconds)[len(results) // 2]
    copies = copy_seconds(first.bytes, rounds=max(5, bench.rounds), threads=bench.runtime.threads)
    without = _sync_without_readback(bench)
    yield {
        "checked": f"{first.checked} names read back equal",
        "bytes": first.bytes,
        "tensors": first.tensors,
        "seconds": middle.seconds,
        "phase_seconds": middle.phase_seconds,
        "seconds_without_readback": without,
        **copies,
        "over_shm_copy": middle.seconds / copies["shm_copy_seconds"],
    }


def _sync_without_readback(bench: Bench) -> float:
    off = bench.config.sync.model_copy(update={"readback": "off"})
    seconds = sorted(bench.team.sync(off).seconds for _ in range(max(5, bench.rounds)))
    return seconds[len(seconds) // 2]


def bench_generation(bench: Bench) -> Iterator[Line]:
    """32 completions of 64 tokens."""
    request = bench.request(32, n=1, max_tokens=64)
    completions = bench.team.generate(request)
    figures = _check_completions(bench, request, completions)
    seconds = median_seconds(lambda: bench.team.generate(request), rounds=bench.rounds)
    tokens = 32 * 64
    line = {**figures, "tokens": tokens, "seconds": seconds, "tokens_per_second": tokens / seconds}
    if bench.precision == "bf16":
        plain = plain_vllm_seconds(
            bench.model,
            request,
            rounds=bench.rounds,
            environment=bench.runtime.environment.variables,
            base_environment=dict(os.environ),
            max_model_len=bench.config.sampling.max_model_len,
        )
        line["plain_vllm_tokens_per_second"] = plain["tokens"] / plain["seconds"]
        line["over_plain_vllm"] = plain["seconds"] / seconds
    yield line


def bench_update(bench: Bench) -> Iterator[Line]:
    """One optimizer step on 32 completions of 64 tokens."""
    request = bench.request(32, n=1, max_tokens=64)
    completions = bench.team.generate(request)
    figures = _check_completions(bench, request, completions)
    batch = _batch(request, completions)
    norms = [bench.team.train(batch, bench.config.algorithm).metrics["grad_norm"]]
    if not norms[0] > 0:
        raise RuntimeError(f"update: the gradient norm is {norms[0]}")
    seconds = median_seconds(
        lambda: bench.team.train(batch, bench.config.algorithm), rounds=bench.rounds
    )
    bench.team.sync()
    yield {**figures, "grad_norm": norms[0], "tokens": batch.tokens, "seconds": seconds}


def bench_step(bench: Bench) -> Iterator[Line]:
    """A whole GRPO step: 8 prompts, 4 completions each, 32 tokens; update and sync."""
    request = bench.request(8, n=4, max_tokens=32)
    shares: list[tuple[float, float, float]] = []

    def once() -> None:
        begun = time.perf_counter()
        completions = bench.team.generate(request)
        sampled = time.perf_counter() - begun
        batch = _batch(request, completions)
        if batch.versions != (bench.team.version(),):
            raise RuntimeError(f"step: tokens of {batch.versions}, weights {bench.team.version()}")
        trained = bench.team.train(batch, bench.config.algorithm)
        synced = bench.team.sync()
        if not synced.bytes_equal or synced.version != trained.version:
            raise RuntimeError("step: the sampler does not hold the learner's new bytes")
        shares.append((sampled, trained.seconds, synced.seconds))

    seconds = median_seconds(once, rounds=bench.rounds)
    sampled, learned, synced = (
        sorted(column)[len(column) // 2] for column in zip(*shares, strict=True)
    )
    yield {
        "checked": "versions and bytes equal at every step",
        "tokens": 8 * 4 * 32,
        "seconds": seconds,
        "sampler_seconds": sampled,
        "learner_seconds": learned,
        "sync_seconds": synced,
    }


def _check_completions(
    bench: Bench, request: SampleRequest, completions: Sequence[Completion]
) -> Line:
    """The learner must give the sampled tokens nearly the sampler's probabilities."""
    lengths = {len(completion.tokens) for completion in completions}
    if lengths != {request.max_tokens}:
        raise RuntimeError(f"generation: lengths {sorted(lengths)}, asked {request.max_tokens}")
    sequences = [Scored(request.prompts[c.prompt_index], c.tokens) for c in completions]
    scores = bench.team.score(sequences, precision=None)
    figures = parity(learner=scores, sampler=[c.log_probs for c in completions])
    if not figures.kl_k3 < KL_LIMIT:
        raise RuntimeError(f"learner and sampler disagree: KL {figures.kl_k3:.3g}")
    return {"checked": f"KL to the learner {figures.kl_k3:.2e}", "kl_k3": figures.kl_k3}


def _batch(request: SampleRequest, completions: Sequence[Completion]) -> Batch:
    """Rewards alternate, so that every group has something to learn."""
    rollouts = [
        Rollout(
            request.prompts[c.prompt_index], c.tokens, c.log_probs, float(i % 2), c.version_spans
        )
        for i, c in enumerate(completions)
    ]
    size = max(2, request.n)
    groups: list[Group] = []
    advantages: list[float] = []
    for start in range(0, len(rollouts), size):
        group = Group(Prompt(start, rollouts[start].prompt), tuple(rollouts[start : start + size]))
        groups.append(group)
        advantages += group_advantages(group.rewards, scale_by_std=True, epsilon=1e-6)
    return Batch(tuple(groups), tuple(advantages))


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return float(f"{value:.5g}") if isinstance(value, float) else value


PARTS: dict[str, Callable[[Bench], Iterator[Line]]] = {
    "sync": bench_sync,
    "generation": bench_generation,
    "update": bench_update,
    "step": bench_step,
}
