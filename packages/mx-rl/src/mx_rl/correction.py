"""Truncated importance sampling between the sampler's and the learner's distribution.

Tokens are drawn by one engine and their gradients computed by another. At equal weights the two
still differ by numerics, so the policy gradient is weighted per token with
``min(p_learner / p_sampler, cap)`` (Yao et al., "Your efficient RL framework secretly brings you
off-policy RL training", 2025). The weight is a constant: no gradient flows through it.
"""

from __future__ import annotations

import torch
from torch import Tensor


def importance_weights(
    learner_T: Tensor, sampler_T: Tensor, *, cap: float | None
) -> tuple[Tensor, Tensor]:
    """Weights [T] and which of them were truncated [T] bool; no gradient.

    ``learner_T``: log-probabilities under the learner's weights that the tokens were sampled with.
    ``cap=None`` switches the correction off: every weight is 1.
    """
    if cap is None:
        return torch.ones_like(sampler_T), torch.zeros_like(sampler_T, dtype=torch.bool)
    ratio_T = (learner_T.detach() - sampler_T).exp()
    return ratio_T.clamp(max=cap), ratio_T > cap
