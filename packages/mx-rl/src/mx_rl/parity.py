"""How far the sampler's and the learner's distribution are apart, on the tokens that were sampled.

For every sampled token, s is the log-probability under which the sampler drew it and l the one
that the learner's forward pass gives it at the same weights and temperature, both natural and in
float32; d = l - s. Averages are over tokens, each with equal weight.

================================ =============================================================
``kl_k1``                        mean(-d): unbiased estimate of KL(sampler || learner); may be
                                 negative in a finite sample
``kl_k3``                        mean(exp(d) - 1 - d): the same expectation, less variance, never
                                 negative (J. Schulman, "Approximating KL divergence", 2020)
``kl_k3_stderr``                 standard error of ``kl_k3``, as if tokens were independent
``logprob_abs_diff``             mean(|d|)
``token_mult_prob_error``        mean(exp(|d|)); 1 is perfect agreement (NeMo-RL, docs/guides/
                                 grpo.md, "Metrics", and its clipped policy-gradient loss)
``probs_diff_mean``, ``_max``    mean and maximum of |exp(l) - exp(s)| (verl,
                                 verl/utils/debug/metrics.py, ``rollout_probs_diff_*``)
================================ =============================================================

Sums are in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from mx_rl.types import Floats, concatenate


@dataclass(frozen=True, slots=True)
class Parity:
    """See the module; ``tokens`` is how many the averages are over."""

    kl_k1: float
    kl_k3: float
    logprob_abs_diff: float
    token_mult_prob_error: float
    probs_diff_mean: float
    probs_diff_max: float
    kl_k3_stderr: float
    tokens: int

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def parity(*, learner: Sequence[Floats], sampler: Sequence[Floats]) -> Parity:
    """The figures over all tokens of all sequences; the two lists match array by array.

    Raises ValueError where lengths differ, a value is not finite, or there is no token at all.
    """
    lengths = [(len(a), len(b)) for a, b in zip(learner, sampler, strict=True)]
    wrong = [index for index, (a, b) in enumerate(lengths) if a != b]
    if wrong:
        raise ValueError(
            f"sequences {wrong[:8]}: learner and sampler scored {lengths[wrong[0]]} tokens"
        )
    learner_T = concatenate(learner).astype(np.float64)
    sampler_T = concatenate(sampler).astype(np.float64)
    if not len(sampler_T):
        raise ValueError("no sampled token: parity has nothing to be measured on")
    for name, values in (("learner", learner_T), ("sampler", sampler_T)):
        if not np.isfinite(values).all():
            raise ValueError(f"the {name} gave a log-probability that is not finite")
    d_T = learner_T - sampler_T
    k3_T = np.expm1(d_T) - d_T
    probs_T = np.abs(np.exp(learner_T) - np.exp(sampler_T))
    return Parity(
        kl_k1=float(np.mean(-d_T)),
        kl_k3=float(np.mean(k3_T)),
        logprob_abs_diff=float(np.mean(np.abs(d_T))),
        token_mult_prob_error=float(np.mean(np.exp(np.abs(d_T)))),
        probs_diff_mean=float(np.mean(probs_T)),
        probs_diff_max=float(np.max(probs_T)),
        kl_k3_stderr=float(np.std(k3_T) / np.sqrt(len(k3_T))),
        tokens=len(d_T),
    )
