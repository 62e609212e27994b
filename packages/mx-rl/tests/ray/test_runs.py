"""Whole runs by the command line, on Ray, with the smallest engines there are."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

HELPERS = Path(__file__).parents[1]
LIMIT_S = 300.0
"""For a busy machine; on a quiet one a run takes seconds."""

STARTED: list[subprocess.Popen[str]] = []

STEP_KEYS = {
    "reward_mean", "kl_k1", "kl_k3", "logprob_abs_diff", "token_mult_prob_error",
    "sync_seconds", "sync_bytes", "sync_tensors", "bytes_equal", "weight_version",
    "learner_seconds", "sampler_seconds", "tokens",
}  # fmt: skip


@pytest.fixture(autouse=True)
def end_what_a_failed_test_leaves() -> Iterator[None]:
    yield
    for process in STARTED:
        if process.poll() is None:
            process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
    STARTED.clear()


def start(tmp_path: Path, tiny: Path, *more: str) -> subprocess.Popen[str]:
    settings = [
        f"model.path={tiny}", "engines.learner=bigram:BigramLearner",
        "engines.sampler=bigram:BigramSampler", "optimizer.learning_rate=100",
        "run.steps=3", "run.dir=runs", *more,
    ]  # fmt: skip
    arguments = [part for item in settings for part in ("--set", item)]
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "mx_rl.cli", "train", "tiny_easy", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(HELPERS), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    STARTED.append(process)
    return process


def lines(process: subprocess.Popen[str]) -> Iterator[str]:
    assert process.stdout is not None
    for line in process.stdout:  # noqa: UP028 - `yield from` would close the file with us
        yield line


def until(process: subprocess.Popen[str], text: str) -> str:
    seen = []
    for line in lines(process):
        seen.append(line)
        if text in line:
            return line
    raise AssertionError(f"{text!r} did not appear in:\n{''.join(seen)}")


def shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def gone(processes: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(processes, timeout=30)
    return all(process.status() == psutil.STATUS_ZOMBIE for process in alive)


def test_a_run_leaves_its_configuration_metrics_events_checkpoint_and_summary(
    tmp_path: Path, tiny: Path
) -> None:
    before = shared_memory()
    process = start(tmp_path, tiny, "run.precision_table=true")
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    (run,) = (tmp_path / "runs").iterdir()
    assert f"run directory: {run}" in output
    assert "step 3/3  reward 0." in output
    assert "bytes equal: yes (1 read back)" in output
    summary = json.loads((run / "summary.json").read_text())
    assert [step["step"] for step in summary["steps"]] == [1, 2, 3]
    for step in summary["steps"]:
        assert step.keys() >= STEP_KEYS
        assert step["bytes_equal"] is True
    assert summary["versions"].keys() >= {"mx-sync", "torch", "ray"}
    assert len(summary["precision_table"]) == 4
    assert (run / "checkpoints" / "step-3" / "learner" / "state.pt").is_file()
    assert list(run.glob("events.out.tfevents.*"))
    assert json.loads((run / "config.json").read_text())["run"]["steps"] == 3
    assert shared_memory() <= before


def test_an_interrupt_ends_with_a_checkpoint_and_the_run_can_go_on(
    tmp_path: Path, tiny: Path
) -> None:
    process = start(tmp_path, tiny, "run.steps=100000")
    until(process, "step 2/")
    process.send_signal(signal.SIGINT)
    output = "".join(lines(process))
    assert process.wait(LIMIT_S) == 130, output
    assert "go on with: mx-rl train --resume" in output
    (run,) = (tmp_path / "runs").iterdir()
    steps = len((run / "metrics.jsonl").read_text().splitlines())
    assert (run / "checkpoints" / f"step-{steps}").is_dir()


@pytest.mark.parametrize("role", ["sampler", "learner"])
def test_a_killed_role_is_named_and_nothing_is_left_behind(
    role: str, tmp_path: Path, tiny: Path
) -> None:
    before = shared_memory()
    process = start(tmp_path, tiny, "run.steps=100000")
    pid = int(until(process, f"{role} (process ").split("(process ")[1].split(")")[0])
    until(process, "step 1/")
    family = psutil.Process(process.pid).children(recursive=True)
    assert pid in {member.pid for member in family}
    os.kill(pid, signal.SIGKILL)
    begun = time.monotonic()
    output = "".join(lines(process))
    assert process.wait(LIMIT_S) == 1, output
    assert time.monotonic() - begun < LIMIT_S
    assert f"the {role}'s process died" in output
    assert f"logs/{role}.log" in output
    assert "Traceback" not in output
    assert gone(family)
    assert shared_memory() <= before


def test_an_adapter_that_refuses_its_model_ends_with_its_reason(tmp_path: Path, tiny: Path) -> None:
    process = start(tmp_path, tiny, "engines.sampler=bigram:Bigram")
    output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 2, output
    assert "bigram has no 'Bigram'; did you mean 'BigramSampler'?" in output
    assert "Traceback" not in output
