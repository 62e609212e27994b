"""SmolLM2-135M learns to add: a real model on two cores, in minutes."""

from __future__ import annotations

from mx_rl.config import (
    Config,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    SamplingConfig,
    TaskConfig,
)


def smollm2_chain_sum() -> Config:
    """One-digit sums of two terms; the model solves about three in ten from the start, and at this
    temperature most groups hold right and wrong answers, so there is something to learn from.

    Five steps show the whole machine at work; they are too few to show that the model learns.
    """
    return Config(
        model=ModelConfig(path="smollm2-135m"),
        task=TaskConfig(
            kind="reasoning_gym",
            dataset="chain_sum",
            options={"min_terms": 2, "max_terms": 2, "min_digits": 1, "max_digits": 1},
            chat=True,
            extract="last_number",
        ),
        sampling=SamplingConfig(
            prompts_per_step=8, group_size=4, max_tokens=32, temperature=0.7, max_model_len=160
        ),
        optimizer=OptimizerConfig(learning_rate=1e-5, micro_batch_tokens=2048),
        run=RunConfig(name="smollm2_chain_sum", steps=5, seed=1),
    )
