"""Group-relative advantages (GRPO; Shao et al., arXiv 2402.03300, section 4.1.2)."""

from __future__ import annotations

import math
from collections.abc import Sequence


def group_advantages(
    rewards: Sequence[float], *, scale_by_std: bool, epsilon: float
) -> tuple[float, ...]:
    """Each reward minus the group's mean, divided by (its standard deviation + epsilon) if asked.

    The standard deviation is the population's (divided by n). ``scale_by_std=False`` leaves the
    division out, which removes the bias towards prompts whose rewards hardly differ (Liu et al.,
    arXiv 2503.20783). A group of equal rewards has advantages of exactly zero.

    Raises ValueError for an empty group or a reward that is not finite.
    """
    if not rewards:
        raise ValueError("a group without completions has no advantage")
    bad = [i for i, reward in enumerate(rewards) if not math.isfinite(reward)]
    if bad:
        raise ValueError(
            f"rewards {bad} of the group are not finite ({rewards[bad[0]]}): mend the reward "
            "function, which must return a number for every completion"
        )
    if min(rewards) == max(rewards):
        return (0.0,) * len(rewards)
    mean = math.fsum(rewards) / len(rewards)
    centred = [reward - mean for reward in rewards]
    if not scale_by_std:
        return tuple(centred)
    std = math.sqrt(math.fsum(value * value for value in centred) / len(centred))
    return tuple(value / (std + epsilon) for value in centred)
