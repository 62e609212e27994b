from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mx_rl.config import Config
from mx_rl.errors import UserError
from mx_rl.overrides import apply_overrides
from mx_rl.rundir import LoopState, RunDirectory


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return apply_overrides(Config(), [f"run.dir={tmp_path}", "run.name=test"])


def state(step: int) -> LoopState:
    return LoopState(step=step, version=f"test@{step}", seed=0, cursor=8 * step)


def save(run: RunDirectory, step: int, *, keep: int = 9) -> None:
    with run.checkpoint(state(step), keep=keep) as directory:
        (directory / "learner").mkdir()
        (directory / "learner" / "weights").write_text(str(step))


def test_a_new_run_keeps_its_configuration(config: Config) -> None:
    run = RunDirectory.create(config)
    assert run.name.startswith("test-")
    assert run.config() == config


def test_two_runs_in_one_second_have_two_directories(config: Config) -> None:
    made = [RunDirectory.create(config) for _ in range(3)]
    assert len({run.path for run in made}) == 3


def test_the_newest_checkpoint_is_found_by_number_not_by_name(config: Config) -> None:
    run = RunDirectory.create(config)
    for step in (2, 10, 9):
        save(run, step)
    found, path = run.latest()
    assert found == state(10)
    assert (path / "learner" / "weights").read_text() == "10"


def test_only_the_newest_checkpoints_are_kept(config: Config) -> None:
    run = RunDirectory.create(config)
    for step in range(1, 5):
        save(run, step, keep=2)
    assert [step for step, _ in run.checkpoints()] == [3, 4]


def test_a_checkpoint_that_fails_leaves_the_one_before_and_no_trace(config: Config) -> None:
    run = RunDirectory.create(config)
    save(run, 1)

    def fail() -> None:
        with run.checkpoint(state(2), keep=1) as directory:
            (directory / "half").write_text("x")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert [path.name for path in (run.path / "checkpoints").iterdir()] == ["step-1"]


def test_a_directory_without_loop_state_is_no_checkpoint(config: Config) -> None:
    run = RunDirectory.create(config)
    (run.path / "checkpoints" / "step-7" / "learner").mkdir(parents=True)
    with pytest.raises(UserError, match="has no checkpoint"):
        run.latest()


def test_a_checkpoint_of_another_schema_is_refused(config: Config) -> None:
    run = RunDirectory.create(config)
    save(run, 1)
    path = run.path / "checkpoints" / "step-1" / "loop.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 2}))
    with pytest.raises(UserError, match="schema 2, this version reads 1"):
        run.latest()


def test_records_after_the_checkpoint_are_forgotten(config: Config) -> None:
    run = RunDirectory.create(config)
    for step in (1, 2, 3):
        run.append({"step": step, "reward_mean": step / 10})
    run.forget_after(2)
    run.append({"step": 3, "reward_mean": 0.5})
    assert [record["reward_mean"] for record in run.records()] == [0.1, 0.2, 0.5]


def test_a_last_line_cut_short_by_a_crash_is_left_out(config: Config) -> None:
    run = RunDirectory.create(config)
    run.append({"step": 1})
    with (run.path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "rew')
    assert run.records() == [{"step": 1}]
    run.forget_after(1)
    assert (run.path / "metrics.jsonl").read_text() == '{"step": 1}\n'


def test_a_second_process_is_kept_out_until_the_first_is_done(config: Config) -> None:
    run = RunDirectory.create(config)
    code = (
        "import sys; from mx_rl.rundir import RunDirectory; from mx_rl.errors import UserError\n"
        "try: RunDirectory.open(sys.argv[1])\n"
        "except UserError as error: print(error)\n"
        "else: print('opened')\n"
    )

    def other() -> str:
        command = [sys.executable, "-c", code, str(run.path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert "is in use by another mx-rl process" in other()
    run.close()
    assert other() == "opened\n"


def test_something_else_is_no_run_directory(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run directory"):
        RunDirectory.open(tmp_path)


def test_scratch_space_is_gone_afterwards(config: Config) -> None:
    run = RunDirectory.create(config)
    with run.scratch("boot") as path:
        path.mkdir()
        (path / "x").write_text("x")
    assert not path.exists()
