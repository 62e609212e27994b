"""The loop: prompts -> groups of completions -> rewards -> advantages -> update -> sync -> next.

It knows a ``Team`` and a ``Task`` and nothing of processes or engines. Everything random in step n
comes from (seed, n), so a run that is stopped and resumed draws what it would have drawn.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from mx_rl.advantage import group_advantages
from mx_rl.config import Config
from mx_rl.errors import UserError
from mx_rl.parity import parity
from mx_rl.roles import Team
from mx_rl.rundir import LoopState, RunDirectory
from mx_rl.seeds import derive, examples_of_step
from mx_rl.tasks import Answer, Example, PromptRenderer, Task, extract_answer
from mx_rl.types import (
    Batch,
    Completion,
    Group,
    Prompt,
    Rollout,
    SampleRequest,
    SyncResult,
    TrainResult,
)

log = logging.getLogger(__name__)

Record = dict[str, Any]


class Listener(Protocol):
    """Hears what happens, to show it."""

    def phase(self, name: str, step: int) -> None: ...
    def step(self, record: Record) -> None: ...


class Trainer:
    """Runs steps ``done`` + 1 to ``config.run.steps``; ``stopping`` is asked between phases."""

    def __init__(
        self,
        config: Config,
        *,
        team: Team,
        task: Task,
        renderer: PromptRenderer,
        run: RunDirectory,
        listener: Listener,
        stopping: Callable[[], bool],
        done: int,
    ) -> None:
        self._config = config
        self._team = team
        self._task = task
        self._renderer = renderer
        self._run = run
        self._listener = listener
        self._stopping = stopping
        self.done = done
        self._saved = done

    def run(self) -> bool:
        """True when all steps are done, False when asked to stop; either way with a checkpoint."""
        while self.done < self._config.run.steps and not self._stopping():
            record = self._step(self.done)
            if record is None:
                break
            self.done += 1
            self._run.append(record)
            self._listener.step(record)
            every = self._config.run.checkpoint_every
            if every and self.done % every == 0:
                self.save()
        self.save()
        return self.done >= self._config.run.steps

    def save(self) -> None:
        """A checkpoint of the last finished step, unless it is there already."""
        if self._saved == self.done and self.done > 0:
            return
        self._listener.phase("checkpoint", self.done)
        state = LoopState(
            step=self.done,
            version=self._team.version(),
            seed=self._config.run.seed,
            cursor=self.done * self._config.sampling.prompts_per_step,
        )
        with self._run.checkpoint(state, keep=self._config.run.keep_checkpoints) as directory:
            self._team.save(directory / "learner")
        self._saved = self.done

    def prompts(self, step: int, *, purpose: str = "train") -> list[tuple[Prompt, Example]]:
        """The prompts of a step (counted from 0). Raises UserError for one that is too long."""
        sampling = self._config.sampling
        seed = self._config.run.seed if purpose == "train" else self._config.run.seed + 1
        chosen = examples_of_step(
            seed, step=step, count=sampling.prompts_per_step, size=self._task.size
        )
        found = []
        for index in chosen:
            example = self._task.example(index)
            tokens = self._renderer.render(example.question)
            longest = sampling.max_model_len - sampling.max_tokens
            if not 0 < len(tokens) <= longest:
                raise UserError(
                    f"the prompt of example {index} has {len(tokens)} tokens; with "
                    f"sampling.max_model_len={sampling.max_model_len} and "
                    f"sampling.max_tokens={sampling.max_tokens} it may have 1 to {longest}: raise "
                    "sampling.max_model_len"
                )
            found.append((Prompt(index, tokens), example))
        return found

    def request(self, prompts: Sequence[Prompt], step: int) -> SampleRequest:
        """What the sampler is asked for in a step."""
        sampling = self._config.sampling
        return SampleRequest(
            prompts=tuple(prompt.tokens for prompt in prompts),
            n=sampling.group_size,
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            seed=derive(self._config.run.seed, "sampling", step),
            stop_token_ids=self._renderer.eos_token_ids if sampling.stop_at_eos else (),
        )

    def _step(self, step: int) -> Record | None:
        begun = time.perf_counter()
        asked = self.prompts(step)
        self._listener.phase("sample", step + 1)
        completions = self._team.generate(self.request([prompt for prompt, _ in asked], step))
        sampled = time.perf_counter() - begun
        if self._stopping():
            return None  # nothing has changed: the resumed run samples the same again
        self._listener.phase("reward", step + 1)
        batch = self._batch(asked, completions)
        self._check_version(batch)
        self._listener.phase("learn", step + 1)
        trained = self._team.train(batch, self._config.algorithm)
        self._listener.phase("sync", step + 1)
        synced = self._team.sync()
        record = _record(batch, trained, synced)
        return {
            "step": step + 1,
            **record,
            "sampler_seconds": sampled,
            "step_seconds": time.perf_counter() - begun,
        }

    def _batch(
        self, asked: Sequence[tuple[Prompt, Example]], completions: Sequence[Completion]
    ) -> Batch:
        by_prompt: dict[int, list[Completion]] = {index: [] for index in range(len(asked))}
        for completion in completions:
            by_prompt[completion.prompt_index].append(completion)
        groups: list[Group] = []
        advantages: list[float] = []
        for index, (prompt, example) in enumerate(asked):
            found = by_prompt[index]
            if len(found) != self._config.sampling.group_size:
                raise RuntimeError(
                    f"the sampler gave {len(found)} completions of prompt {index}; "
                    f"{self._config.sampling.group_size} were asked for"
                )
            group = Group(prompt, tuple(self._rollout(prompt, example, item) for item in found))
            groups.append(group)
            advantages += group_advantages(
                group.rewards,
                scale_by_std=self._config.algorithm.scale_by_std,
                epsilon=self._config.algorithm.std_epsilon,
            )
        return Batch(tuple(groups), tuple(advantages))

    def _rollout(self, prompt: Prompt, example: Example, completion: Completion) -> Rollout:
        text = self._renderer.text(completion.tokens)
        extracted = extract_answer(text, how=self._config.task.extract)
        reward = self._task.score(example, Answer(completion.tokens, text, extracted))
        log.debug("example %s: %r -> %r: %s", example.index, text, extracted, reward)
        return Rollout(
            prompt=prompt.tokens,
            completion=completion.tokens,
            log_probs=completion.log_probs,
            reward=reward,
            version_spans=completion.version_spans,
        )

    def _check_version(self, batch: Batch) -> None:
        """The figures below compare engines at equal weights; at unequal ones they would lie."""
        learner = self._team.version()
        if batch.versions != (learner,):
            raise RuntimeError(
                f"tokens were sampled with {', '.join(batch.versions) or 'no version'}, the "
                f"learner holds {learner}: the last sync did not reach the sampler"
            )


def _record(batch: Batch, trained: TrainResult, synced: SyncResult) -> Record:
    rewards = [rollout.reward for rollout in batch.sequences]
    figures = parity(
        learner=trained.log_probs, sampler=[rollout.log_probs for rollout in batch.sequences]
    )
    learning = {key: value for key, value in trained.metrics.items() if key != "tokens"}
    return {
        "reward_mean": statistics.fmean(rewards),
        "reward_std": statistics.pstdev(rewards),
        **figures.as_dict(),
        "tokens": batch.tokens,
        "completion_tokens_mean": batch.tokens / len(rewards),
        "groups_without_signal": sum(min(g.rewards) == max(g.rewards) for g in batch.groups),
        **learning,
        "learner_seconds": trained.seconds,
        "sync_seconds": synced.seconds,
        "sync_bytes": synced.bytes,
        "sync_tensors": synced.tensors,
        "sync_checked": synced.checked,
        "bytes_equal": synced.bytes_equal,
        "sampled_version": batch.versions[0],
        "weight_version": synced.version,
    }
