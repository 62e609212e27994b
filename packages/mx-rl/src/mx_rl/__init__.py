"""Reinforcement learning of language models, with learner and sampler on one grid.

The loop is ``loop.Trainer``; what it needs from engines is in ``roles``; the command line is
``mx-rl``. Figures of agreement between the two sides are defined in ``parity``.
"""

from mx_rl.advantage import group_advantages
from mx_rl.config import Config
from mx_rl.correction import importance_weights
from mx_rl.errors import RoleDied, RoleFailed, UserError
from mx_rl.loss import LossSettings, PolicyLoss
from mx_rl.parity import Parity, parity
from mx_rl.types import Batch, Completion, Group, Prompt, Rollout

__all__ = [
    "Batch",
    "Completion",
    "Config",
    "Group",
    "LossSettings",
    "Parity",
    "PolicyLoss",
    "Prompt",
    "RoleDied",
    "RoleFailed",
    "Rollout",
    "UserError",
    "group_advantages",
    "importance_weights",
    "parity",
]
