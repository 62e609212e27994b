from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

from mx_rl.loss import LossSettings, PolicyLoss
from mx_rl.types import Batch, Group, Prompt, Rollout

PLAIN = LossSettings(
    clip_low=0.2, clip_high=0.2, normalization="token", importance_cap=None, kl_coef=0.0
)


def settings(**changes: object) -> LossSettings:
    fields = {name: getattr(PLAIN, name) for name in LossSettings.__slots__}
    return LossSettings(**{**fields, **changes})


def batch(sampler: Sequence[Sequence[float]], advantages: Sequence[float]) -> Batch:
    rollouts = tuple(
        Rollout((1,), tuple(range(len(row))), np.array(row, np.float32), 0.0, ()) for row in sampler
    )
    return Batch((Group(Prompt(0, (1,)), rollouts),), tuple(advantages))


def leaf(values: Sequence[float]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, requires_grad=True)


def test_the_first_update_has_the_plain_policy_gradient() -> None:
    # d/dx of -exp(x - x.detach()) * A / tokens is -A / tokens
    made = PolicyLoss(batch([[-1.0, -2.0], [-3.0]], [0.5, -1.5]), PLAIN)
    first, second = leaf([-1.1, -2.2]), leaf([-3.3])
    loss, _ = made([first, second], [0, 1])
    loss.backward()
    assert loss.item() == pytest.approx(-(0.5 * 2 - 1.5) / 3)
    assert first.grad is not None
    assert second.grad is not None
    torch.testing.assert_close(first.grad, torch.tensor([-0.5 / 3, -0.5 / 3]))
    torch.testing.assert_close(second.grad, torch.tensor([1.5 / 3]))


def test_sequence_normalisation_averages_within_then_over_sequences() -> None:
    made = PolicyLoss(batch([[-1.0, -2.0], [-3.0]], [1.0, 1.0]), settings(normalization="sequence"))
    first, second = leaf([-1.0, -2.0]), leaf([-3.0])
    made([first, second], [0, 1])[0].backward()
    assert first.grad is not None
    assert second.grad is not None
    torch.testing.assert_close(first.grad, torch.tensor([-0.25, -0.25]))
    torch.testing.assert_close(second.grad, torch.tensor([-0.5]))


def test_micro_batches_add_up_to_the_batch() -> None:
    data = batch([[-1.0, -2.0], [-3.0], [-0.5, -0.6, -0.7]], [0.5, -1.5, 1.0])
    now = [[-1.1, -2.2], [-3.3], [-0.4, -0.9, -0.7]]
    old = [np.array(row, np.float32) for row in ([-1.0, -2.6], [-3.3], [-0.5, -0.9, -1.7])]
    for normalization in ("token", "sequence"):
        made = PolicyLoss(data, settings(normalization=normalization, importance_cap=1.05), old=old)
        whole, metrics = made([leaf(row) for row in now], [0, 1, 2])
        parts = [made([leaf(now[i])], [i]) for i in (2, 0, 1)]
        assert sum(part[0].item() for part in parts) == pytest.approx(whole.item(), abs=1e-6)
        for key, value in metrics.items():
            assert sum(part[1][key] for part in parts) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    ("advantage", "ratio", "moves"),
    [(1.0, 1.5, False), (1.0, 0.5, True), (-1.0, 0.5, False), (-1.0, 1.5, True)],
)
def test_clipping_stops_only_steps_that_go_further_from_the_old_policy(
    advantage: float, ratio: float, moves: bool
) -> None:
    made = PolicyLoss(batch([[-1.0]], [advantage]), PLAIN, old=[np.array([-1.0], np.float32)])
    now = leaf([-1.0 + math.log(ratio)])
    loss, metrics = made([now], [0])
    loss.backward()
    assert now.grad is not None
    clipped = min(max(ratio, 0.8), 1.2)
    assert loss.item() == pytest.approx(-min(ratio * advantage, clipped * advantage), rel=1e-5)
    assert now.grad.item() == pytest.approx(-ratio * advantage if moves else 0.0, rel=1e-5)
    assert metrics["ratio_clipped"] == (0.0 if moves else 1.0)


def test_the_importance_weight_scales_the_gradient_and_is_truncated() -> None:
    made = PolicyLoss(batch([[-2.0, -1.0]], [1.0]), settings(importance_cap=2.0))
    now = leaf([-1.0, -1.5])  # ratios to the sampler: e, exp(-0.5)
    loss, metrics = made([now], [0])
    loss.backward()
    assert now.grad is not None
    torch.testing.assert_close(now.grad, torch.tensor([-2.0 / 2, -math.exp(-0.5) / 2]))
    assert metrics["importance_capped"] == 0.5
    assert metrics["importance_weight"] == pytest.approx((2.0 + math.exp(-0.5)) / 2)


def test_the_reference_penalty_has_the_gradient_of_k3() -> None:
    # k3 = exp(r - x) - 1 - (r - x); its derivative in x is 1 - exp(r - x)
    made = PolicyLoss(
        batch([[-1.0]], [0.0]), settings(kl_coef=0.5), reference=[np.array([-1.3], np.float32)]
    )
    now = leaf([-1.0])
    loss, metrics = made([now], [0])
    loss.backward()
    assert now.grad is not None
    assert loss.item() == pytest.approx(0.5 * (math.exp(-0.3) - 1 + 0.3), rel=1e-4)
    assert now.grad.item() == pytest.approx(0.5 * (1 - math.exp(-0.3)), rel=1e-4)
    assert metrics["reference_kl"] == pytest.approx(math.exp(-0.3) - 1 + 0.3, rel=1e-4)


def test_it_keeps_the_log_probabilities_that_it_saw() -> None:
    made = PolicyLoss(batch([[-1.0], [-2.0]], [1.0, -1.0]), PLAIN)
    made([leaf([-2.5])], [1])
    made([leaf([-1.5])], [0])
    assert {key: value.tolist() for key, value in made.seen.items()} == {0: [-1.5], 1: [-2.5]}


def test_a_penalty_without_a_reference_is_refused() -> None:
    with pytest.raises(ValueError, match="needs reference"):
        PolicyLoss(batch([[-1.0]], [0.0]), settings(kl_coef=0.1))


def test_log_probabilities_of_another_length_are_refused() -> None:
    made = PolicyLoss(batch([[-1.0, -2.0]], [1.0]), PLAIN)
    with pytest.raises(ValueError, match="2 log-probabilities where the learner has 1"):
        made([leaf([-1.0])], [0])
