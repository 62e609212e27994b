"""A random tiny model and a task that it can learn in half a minute: does the loop learn?"""

from __future__ import annotations

from mx_rl.config import (
    Config,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    TaskConfig,
)


def tiny_easy() -> Config:
    """Reward: the share of completion tokens that lie in the upper half of the vocabulary.

    The random model starts near one half. The task has no end-of-text to run into, every token
    carries credit, and the reward can rise to 1.
    """
    return Config(
        model=ModelConfig(path="tiny-qwen3"),
        task=TaskConfig(
            kind="target_tokens",
            target_tokens=tuple(range(256, 512)),
            chat=False,
            prompt="{question}",
            size=64,
        ),
        sampling=SamplingConfig(
            prompts_per_step=8,
            group_size=8,
            max_tokens=16,
            temperature=1.0,
            stop_at_eos=False,
            max_model_len=64,
            max_num_seqs=64,
        ),
        optimizer=OptimizerConfig(learning_rate=1e-3, micro_batch_tokens=4096),
        run=RunConfig(name="tiny_easy", steps=12, seed=1),
    )
