from __future__ import annotations

import math

import pytest

from mx_rl.advantage import group_advantages


def test_advantages_are_centred_and_scaled_by_the_population_deviation() -> None:
    # mean 1, deviations -1, 0, 1: variance 2/3
    std = math.sqrt(2 / 3)
    got = group_advantages([0.0, 1.0, 2.0], scale_by_std=True, epsilon=0.0)
    assert got == pytest.approx([-1 / std, 0.0, 1 / std])


def test_without_scaling_only_the_mean_is_taken_off() -> None:
    assert group_advantages([0.0, 0.0, 0.0, 1.0], scale_by_std=False, epsilon=1.0) == (
        -0.25,
        -0.25,
        -0.25,
        0.75,
    )


def test_epsilon_is_added_to_the_deviation() -> None:
    # deviation 0.5
    got = group_advantages([0.0, 1.0], scale_by_std=True, epsilon=0.5)
    assert got == pytest.approx([-0.5, 0.5])


@pytest.mark.parametrize("scale", [True, False])
def test_equal_rewards_give_exact_zeros_without_dividing_by_zero(scale: bool) -> None:
    assert group_advantages([0.1] * 3, scale_by_std=scale, epsilon=0.0) == (0.0, 0.0, 0.0)


def test_a_reward_that_is_not_finite_is_named() -> None:
    with pytest.raises(ValueError, match=r"rewards \[1\] .* not finite"):
        group_advantages([0.0, math.nan], scale_by_std=True, epsilon=0.0)


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(ValueError, match="without completions"):
        group_advantages([], scale_by_std=True, epsilon=0.0)
