"""An MXFP8 learner on Megatron-Core: it trains, scores and exports on one grid."""

from typing import TYPE_CHECKING, Any

from mx_megatron.architecture import SUPPORTED, Architecture
from mx_megatron.recipe import PRECISIONS, Recipe

if TYPE_CHECKING:
    from mx_megatron.learner import MegatronLearner
    from mx_megatron.optim import NonFiniteStep
    from mx_megatron.source import LearnerSource

__all__ = [
    "PRECISIONS",
    "SUPPORTED",
    "Architecture",
    "LearnerSource",
    "MegatronLearner",
    "NonFiniteStep",
    "Recipe",
]

_ENGINE = {
    "LearnerSource": "mx_megatron.source",
    "MegatronLearner": "mx_megatron.learner",
    "NonFiniteStep": "mx_megatron.optim",
}


def __getattr__(name: str) -> Any:
    # The learner needs Megatron-Core, an extra; the names and recipes above do not.
    if name not in _ENGINE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_ENGINE[name]), name)
