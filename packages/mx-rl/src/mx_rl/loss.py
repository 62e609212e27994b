"""The clipped policy gradient, as the ``loss_fn`` that a learner calls on every micro-batch.

For token t of sequence i with advantage A_i:

    ratio = exp(now - old)
    loss_t = -w_t * min(ratio * A_i, clip(ratio, 1 - low, 1 + high) * A_i) + kl_coef * k3_t

``old`` are the log-probabilities under the weights that sampled the tokens, by the learner. In the
first update of a batch they are this very forward pass, so the ratio is 1 and only its gradient
matters. ``w_t`` is the truncated importance weight of ``correction``; ``k3_t = exp(r) - 1 - r``
with r = reference - now, the KL estimate of Schulman (2020).

Normalisation is global, so micro-batch losses add up to the batch's: "token" divides by the number
of completion tokens in the batch (every token counts the same); "sequence" averages within each
sequence, then over sequences (every sequence counts the same; empty completions count as zero).

Legend: T completion tokens of one sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mx_rl.correction import importance_weights
from mx_rl.types import Batch, Floats


@dataclass(frozen=True, slots=True)
class LossSettings:
    """``clip_low``/``clip_high``: how far the ratio may leave 1; ``cap``: see ``correction``."""

    clip_low: float
    clip_high: float
    normalization: str
    importance_cap: float | None
    kl_coef: float


class PolicyLoss:
    """Call it with the current log-probabilities of some sequences of the batch.

    ``seen`` collects the values of this pass, one [T] array per sequence: what parity is measured
    on, and the ``old`` of a second update on the same batch. Metrics are shares of the whole
    batch, so that summing them over micro-batches gives the batch's.
    """

    def __init__(
        self,
        batch: Batch,
        settings: LossSettings,
        *,
        old: Sequence[Floats] | None = None,
        reference: Sequence[Floats] | None = None,
    ) -> None:
        if settings.normalization not in ("token", "sequence"):
            raise ValueError(f"normalization {settings.normalization!r}: expected token, sequence")
        if settings.kl_coef != 0.0 and reference is None:
            raise ValueError(f"kl_coef={settings.kl_coef} needs reference log-probabilities")
        self._sequences = batch.sequences
        self._advantages = batch.advantages
        self._settings = settings
        self._old = old
        self._reference = reference
        self._tokens = max(1, batch.tokens)
        self.seen: dict[int, Floats] = {}

    def __call__(
        self, log_probs: list[Tensor], indices: list[int]
    ) -> tuple[Tensor, dict[str, float]]:
        total = torch.zeros((), dtype=torch.float32)
        metrics = dict.fromkeys(
            ("ratio_clipped", "importance_weight", "importance_capped", "reference_kl"), 0.0
        )
        for now_T, index in zip(log_probs, indices, strict=True):
            self.seen[index] = now_T.detach().cpu().numpy().copy()
            loss_T = self._token_losses(now_T, index, metrics)
            total = total.to(loss_T.device) + loss_T.sum() * self._weight(len(now_T))
        return total, metrics

    def _weight(self, tokens: int) -> float:
        if self._settings.normalization == "token":
            return 1.0 / self._tokens
        return 1.0 / (max(1, tokens) * len(self._sequences))

    def _token_losses(self, now_T: Tensor, index: int, metrics: dict[str, float]) -> Tensor:
        chosen = self._settings
        advantage = self._advantages[index]
        sampler_T = _like(self._sequences[index].log_probs, now_T)
        old_T = now_T.detach() if self._old is None else _like(self._old[index], now_T)
        ratio_T = (now_T - old_T).exp()
        clipped_T = ratio_T.clamp(1.0 - chosen.clip_low, 1.0 + chosen.clip_high)
        weight_T, capped_T = importance_weights(old_T, sampler_T, cap=chosen.importance_cap)
        loss_T = -weight_T * torch.minimum(ratio_T * advantage, clipped_T * advantage)
        binds_T = clipped_T * advantage < ratio_T * advantage
        metrics["ratio_clipped"] += float(binds_T.sum()) / self._tokens
        metrics["importance_weight"] += float(weight_T.sum()) / self._tokens
        metrics["importance_capped"] += float(capped_T.sum()) / self._tokens
        if self._reference is not None:
            away_T = _like(self._reference[index], now_T) - now_T
            k3_T = away_T.exp() - 1.0 - away_T
            metrics["reference_kl"] += float(k3_T.detach().sum()) / self._tokens
            loss_T = loss_T + chosen.kl_coef * k3_T
        return loss_T


def _like(values: Floats, other: Tensor) -> Tensor:
    if len(values) != len(other):
        raise ValueError(f"{len(values)} log-probabilities where the learner has {len(other)}")
    return torch.tensor(values).to(other)
