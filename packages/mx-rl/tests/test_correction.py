from __future__ import annotations

import math

import torch

from mx_rl.correction import importance_weights


def test_weights_are_probability_ratios_up_to_the_cap() -> None:
    learner = torch.tensor([math.log(0.5), math.log(0.9), math.log(0.1)])
    sampler = torch.tensor([math.log(0.25), math.log(0.3), math.log(0.2)])
    weights, capped = importance_weights(learner, sampler, cap=2.5)
    torch.testing.assert_close(weights, torch.tensor([2.0, 2.5, 0.5]))
    assert capped.tolist() == [False, True, False]


def test_no_gradient_flows_through_the_weights() -> None:
    learner = torch.tensor([-1.0], requires_grad=True)
    weights, _ = importance_weights(learner, torch.tensor([-2.0]), cap=10.0)
    assert not weights.requires_grad


def test_without_a_cap_every_weight_is_one() -> None:
    weights, capped = importance_weights(torch.tensor([-1.0]), torch.tensor([-9.0]), cap=None)
    assert weights.tolist() == [1.0]
    assert capped.tolist() == [False]
