"""Learners on tiny random models."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny_config, write_checkpoint

from mx_megatron.learner import MegatronLearner

torch.set_num_threads(min(2, os.cpu_count() or 1))


@pytest.fixture
def learner_of(tmp_path: Path) -> Any:
    """Makes learners on tiny checkpoints and closes them after the test."""
    made: list[MegatronLearner] = []
    paths: dict[str, Path] = {}

    def make(
        config: dict[str, Any] | None = None, *, path: Path | None = None, **settings: Any
    ) -> MegatronLearner:
        config = tiny_config() if config is None else config
        key = json.dumps(config, sort_keys=True)
        if path is None:
            if key not in paths:
                paths[key] = write_checkpoint(tmp_path / f"model{len(paths)}", config)
            path = paths[key]
        defaults: dict[str, Any] = {
            "precision": "mxfp8",
            "learning_rate": 1e-3,
            "run": "test",
            "seed": 0,
        }
        learner = MegatronLearner.from_checkpoint(path, **(defaults | settings))
        made.append(learner)
        return learner

    yield make
    for learner in made:
        learner.close()
