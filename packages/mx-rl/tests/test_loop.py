from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from team import LocalTeam

from mx_rl.config import Config
from mx_rl.errors import UserError
from mx_rl.loop import Trainer
from mx_rl.overrides import apply_overrides
from mx_rl.precision_table import precision_table
from mx_rl.recipes import find_recipe
from mx_rl.rundir import RunDirectory
from mx_rl.tasks import PromptRenderer, build_task

NEVER: Callable[[], bool] = lambda: False  # noqa: E731


class Silent:
    def __init__(self) -> None:
        self.phases: list[tuple[str, int]] = []

    def phase(self, name: str, step: int) -> None:
        self.phases.append((name, step))

    def step(self, record: dict[str, Any]) -> None: ...


@pytest.fixture
def config(tmp_path: Path) -> Config:
    return apply_overrides(
        find_recipe("tiny_easy"),
        [
            f"run.dir={tmp_path}",
            "run.steps=6",
            "engines.learner=bigram:BigramLearner",
            "engines.sampler=bigram:BigramSampler",
            "optimizer.learning_rate=200",
            "sampling.prompts_per_step=4",
            "sampling.max_tokens=8",
        ],
    )


@pytest.fixture
def start(tmp_path: Path, tiny: Path) -> Iterator[Callable[..., Trainer]]:
    """Makes a trainer for a run directory, from its newest checkpoint if it has one."""
    teams: list[LocalTeam] = []

    def make(config: Config, run: RunDirectory, stopping: Callable[[], bool] = NEVER) -> Trainer:
        done, checkpoint = 0, None
        if run.checkpoints():
            state, path = run.latest()
            done, checkpoint = state.step, path / "learner"
        scratch = tmp_path / f"scratch-{len(teams)}"
        scratch.mkdir()
        team = LocalTeam(
            config, model=tiny, run="same-name", scratch=scratch, checkpoint=checkpoint
        )
        teams.append(team)
        return Trainer(
            config,
            team=team,
            task=build_task(config.task, seed=config.run.seed),
            renderer=PromptRenderer(tiny, config.task),
            run=run,
            listener=Silent(),
            stopping=stopping,
            done=done,
        )

    yield make
    for team in teams:
        team.close()


def facts(run: RunDirectory) -> list[dict[str, Any]]:
    return [
        {key: value for key, value in record.items() if not key.endswith("seconds")}
        for record in run.records()
    ]


def test_the_reward_rises_and_every_sync_is_equal(
    config: Config, start: Callable[..., Trainer]
) -> None:
    run = RunDirectory.create(apply_overrides(config, ["run.steps=12"]))
    assert start(run.config(), run).run()
    records = run.records()
    rewards = [record["reward_mean"] for record in records]
    # 256 tokens a step, each a coin near one half: standard error of a step 0.031, of the
    # difference of two means of three steps 0.026. 0.2 is more than seven of those.
    assert statistics.fmean(rewards[-3:]) - statistics.fmean(rewards[:3]) > 0.2, rewards
    assert all(record["bytes_equal"] for record in records)
    assert [record["weight_version"] for record in records] == [
        f"same-name@{step}" for step in range(1, 13)
    ]


def test_figures_are_of_equal_weights_so_only_numerics_are_left(
    config: Config, start: Callable[..., Trainer]
) -> None:
    run = RunDirectory.create(config)
    start(config, run).run()
    # Both sides compute the same rounded table in float32: nothing but rounding remains.
    assert max(record["kl_k3"] for record in run.records()) < 1e-9


@pytest.mark.parametrize("pair", [("mxfp8", "bf16"), ("bf16", "mxfp8")])
def test_unequal_precisions_run_and_show_in_the_figures(
    pair: tuple[str, str], config: Config, start: Callable[..., Trainer]
) -> None:
    learner, sampler = pair
    changed = apply_overrides(
        config, [f"precision.learner={learner}", f"precision.sampler={sampler}", "run.steps=2"]
    )
    run = RunDirectory.create(changed)
    start(changed, run).run()
    for record in run.records():
        assert record["bytes_equal"]
        assert record["kl_k3"] > 1e-6


def test_a_run_stopped_after_a_step_goes_on_bit_for_bit(
    config: Config, start: Callable[..., Trainer]
) -> None:
    whole, parts = RunDirectory.create(config), RunDirectory.create(config)
    start(config, whole).run()
    assert not start(config, parts, lambda: len(parts.records()) == 2).run()
    assert parts.latest()[0].step == 2
    assert parts.latest()[0].cursor == 8
    assert start(config, parts).run()
    assert facts(parts) == facts(whole)


def test_a_run_stopped_while_sampling_gives_that_step_up_and_makes_it_again(
    config: Config, start: Callable[..., Trainer]
) -> None:
    whole, parts = RunDirectory.create(config), RunDirectory.create(config)
    start(config, whole).run()
    asked = iter([False, False, False, True, True])  # before step 1, in it, before 2, in it
    trainer = start(config, parts, lambda: next(asked))
    assert not trainer.run()
    assert trainer.done == 1
    start(config, parts).run()
    assert facts(parts) == facts(whole)


def test_checkpoints_come_as_often_as_asked_and_at_the_end(
    config: Config, start: Callable[..., Trainer]
) -> None:
    changed = apply_overrides(
        config, ["run.checkpoint_every=2", "run.keep_checkpoints=5", "run.steps=5"]
    )
    run = RunDirectory.create(changed)
    start(changed, run).run()
    assert [step for step, _ in run.checkpoints()] == [2, 4, 5]


def test_a_second_update_on_a_batch_uses_the_first_pass_as_the_old_policy(
    config: Config, start: Callable[..., Trainer]
) -> None:
    changed = apply_overrides(config, ["algorithm.updates_per_batch=3", "run.steps=2"])
    run = RunDirectory.create(changed)
    start(changed, run).run()
    first, second = run.records()
    assert first["weight_version"] == "same-name@3"
    assert second["sampled_version"] == "same-name@3"
    assert second["kl_k3"] < 1e-9, "parity is of the pass at the sampler's weights"
    assert first["ratio_clipped"] > 0, "the later updates have left the old policy"


def test_a_sampler_that_missed_a_sync_is_found_at_the_next_step(
    config: Config, start: Callable[..., Trainer], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.create(config)
    trainer = start(config, run)
    result = trainer._team.sync()
    monkeypatch.setattr(trainer._team, "sync", lambda: result)
    with pytest.raises(RuntimeError, match="the last sync did not reach the sampler"):
        trainer.run()


def test_a_prompt_that_is_too_long_names_the_setting(
    config: Config, start: Callable[..., Trainer]
) -> None:
    changed = apply_overrides(config, ["sampling.max_model_len=10"])
    run = RunDirectory.create(changed)
    with pytest.raises(UserError, match=r"raise sampling.max_model_len"):
        start(changed, run).run()


def test_the_precision_table_has_four_pairs_and_the_matching_ones_agree_best(
    config: Config, start: Callable[..., Trainer]
) -> None:
    run = RunDirectory.create(config)
    trainer = start(config, run)
    request = trainer.request([prompt for prompt, _ in trainer.prompts(0)], 0)
    rows = precision_table(trainer._team, request, live="mxfp8")
    by_pair = {(row["learner"], row["sampler"]): row["kl_k3"] for row in rows}
    assert set(by_pair) == {(a, b) for a in ("mxfp8", "bf16") for b in ("mxfp8", "bf16")}
    for learner, sampler in by_pair:
        assert (by_pair[learner, sampler] < 1e-9) == (learner == sampler)
    assert json.loads(json.dumps(rows)) == rows
