"""The transactional sink over a live engine."""

from __future__ import annotations

from typing import Any

from mx_sync import TransactionalSink, WeightVersion
from mx_vllm.engine import VllmWeights


def open_sink(llm: Any, *, version: WeightVersion, name: str = "vllm") -> TransactionalSink:
    """A sink for ``llm``, which holds ``version`` and is labelled with it."""
    weights = VllmWeights(llm)
    weights.publish(version)
    return TransactionalSink(weights, version=version, name=name)
