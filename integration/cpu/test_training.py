"""The loop on the real engines: it learns, stops, goes on, and survives nothing silently."""

from __future__ import annotations

import json
import signal
import statistics
from pathlib import Path

import pytest
from commands import Command, facts, left_alive, records, run, run_directory, shared_memory

pytestmark = [pytest.mark.engine, pytest.mark.slow]

STEPS = 16


def arguments(tmp_path: Path, name: str, *more: str) -> list[str]:
    settings = [f"run.dir={tmp_path}", f"run.name={name}", f"run.steps={STEPS}", *more]
    return ["train", "tiny_easy", *(part for item in settings for part in ("--set", item))]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    return run_directory(run(arguments(folder, "whole"), cwd=folder))


def test_the_reward_rises_clearly_on_an_easy_task(whole: Path) -> None:
    rewards = [record["reward_mean"] for record in records(whole)]
    assert len(rewards) == STEPS
    # A step's mean reward is over 64 completions of 16 tokens, each token a coin near one half:
    # standard error at most 0.5 / sqrt(1024) = 0.016, of the mean of three steps 0.009, of the
    # difference of two such means 0.013. Without learning, 0.08 is more than six of those.
    rise = statistics.fmean(rewards[-3:]) - statistics.fmean(rewards[:3])
    assert rise > 0.08, rewards


def test_every_sync_is_read_back_equal_and_moves_the_version_by_one(whole: Path) -> None:
    summary = json.loads((whole / "summary.json").read_text())
    assert summary["finished"] is True
    assert [step["bytes_equal"] for step in summary["steps"]] == [True] * STEPS
    versions = [step["weight_version"] for step in summary["steps"]]
    assert versions == [f"{whole.name}@{step}" for step in range(1, STEPS + 1)]
    assert {"megatron-core", "torch", "mx-quant"} <= summary["versions"].keys()


def test_a_run_that_was_interrupted_goes_on_as_if_it_had_not_been(
    whole: Path, tmp_path: Path
) -> None:
    command = Command(arguments(tmp_path, "parts"), cwd=tmp_path)
    directory = run_directory(command)
    command.wait_for(r"step 5/16")
    command.process.send_signal(signal.SIGINT)
    assert command.end() == 128 + signal.SIGINT, command.output
    done = len(records(directory))
    assert 5 <= done < STEPS
    assert (directory / "checkpoints" / f"step-{done}" / "loop.json").is_file()

    run(["train", "--resume", str(directory)], cwd=tmp_path)
    expected = [facts(record) for record in records(whole)]
    assert [facts(record) for record in records(directory)] == expected

    exports = []
    for source, name in ((whole, "a"), (directory, "b")):
        out = tmp_path / name
        run(["export", str(source), "--out", str(out)], cwd=tmp_path)
        exports.append((out / "model.safetensors").read_bytes())
    assert exports[0] == exports[1]


def test_a_killed_sampler_ends_the_run_with_a_message_and_leaves_nothing_behind(
    tmp_path: Path,
) -> None:
    before = shared_memory()
    command = Command(arguments(tmp_path, "killed", "run.steps=100000"), cwd=tmp_path)
    sampler = int(command.wait_for(r"sampler \(process (\d+)\)").group(1))
    command.wait_for(r"step 2/")
    processes = command.descendants()
    killed = [process for process in processes if process.pid == sampler]
    assert killed, "the sampler is a process of its own under the command"
    killed[0].kill()
    assert command.end() == 1, command.output
    assert "the sampler's process died" in command.output
    assert "--resume" in command.output
    assert "Traceback" not in command.output
    assert left_alive(processes) == []
    assert shared_memory() <= before
