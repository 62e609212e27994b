"""Log-probabilities of given tokens, without logits that nobody reads.

The model's decoder runs over whole sequences; the output layer runs only on the rows that predict
a completion token. Log-probabilities are natural, float32: ``log_softmax(logits.float() / T)``
with bf16 logits, the distribution that a sampler at temperature T draws from.

Shapes: S positions, B sequences, R scored rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from mx_megatron.batching import MicroBatch

_CHUNK_ROWS = 256
"""Rows whose float32 logits exist at one time: 50 MB for a vocabulary of 49152."""


class _TokenLogProbs(torch.autograd.Function):
    """logits_RV (bf16), targets_R -> log-probabilities_R (float32), float32 memory of one chunk."""

    @staticmethod
    def forward(ctx: Any, logits_RV: Tensor, targets_R: Tensor, temperature: float) -> Tensor:
        ctx.save_for_backward(logits_RV, targets_R)
        ctx.temperature = temperature
        return token_log_probs(logits_RV, targets_R, temperature=temperature)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        logits_RV, targets_R = ctx.saved_tensors
        scaled_R = grads[0] / ctx.temperature
        out_RV = torch.empty_like(logits_RV)
        for part in _chunks(len(logits_RV)):
            p = torch.softmax(logits_RV[part].float().div_(ctx.temperature), dim=-1)
            g = scaled_R[part]
            p.mul_(-g[:, None])
            p.scatter_add_(1, targets_R[part][:, None], g[:, None])
            out_RV[part] = p
        return out_RV, None, None


def token_log_probs(logits_RV: Tensor, targets_R: Tensor, *, temperature: float) -> Tensor:
    """``log_softmax(logits.float() / temperature)`` at the targets, [R] float32."""
    out = torch.empty(len(logits_RV), dtype=torch.float32, device=logits_RV.device)
    for part in _chunks(len(logits_RV)):
        scores = torch.log_softmax(logits_RV[part].float().div_(temperature), dim=-1)
        out[part] = scores.gather(1, targets_R[part][:, None])[:, 0]
    return out


def forward_log_probs(
    model: Any,
    batch: MicroBatch,
    *,
    project: Callable[[Tensor], Tensor],
    temperature: float,
) -> Tensor:
    """Log-probabilities of the completion tokens of ``batch``, [R] float32, with a gradient if on.

    ``project`` is the output layer: hidden [R, hidden] -> logits [R, V].
    """

    def score(*, hidden_states: Tensor, **_: Any) -> Tensor:
        hidden = hidden_states.reshape(-1, hidden_states.shape[-1]).index_select(0, batch.rows)
        if torch.is_grad_enabled():
            scores: Tensor = _TokenLogProbs.apply(  # type: ignore[no-untyped-call]
                project(hidden), batch.targets, temperature
            )
            return scores
        parts = [
            token_log_probs(project(hidden[part]), batch.targets[part], temperature=temperature)
            for part in _chunks(len(hidden))
        ]
        return torch.cat(parts)

    positions = torch.arange(batch.ids.shape[1], device=batch.ids.device).expand_as(batch.ids)
    result: Tensor = model(batch.ids, positions, None, output_processor=score)
    return result


def check_temperature(temperature: float) -> float:
    """``temperature`` itself. Raises ValueError unless it is positive and finite."""
    if not 0.0 < temperature < float("inf"):
        raise ValueError(
            f"temperature={temperature}; expected a positive number (greedy sampling, temperature "
            "0, has no distribution to take log-probabilities of)"
        )
    return temperature


def _chunks(rows: int) -> list[slice]:
    return [slice(i, min(i + _CHUNK_ROWS, rows)) for i in range(0, rows, _CHUNK_ROWS)]
