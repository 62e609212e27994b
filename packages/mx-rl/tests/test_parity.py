from __future__ import annotations

import math

import numpy as np
import pytest

from mx_rl.parity import parity

LEARNER = [np.log(np.array([0.5, 0.25], np.float32)), np.log(np.array([0.8], np.float32))]
SAMPLER = [np.log(np.array([0.25, 0.25], np.float32)), np.log(np.array([0.4], np.float32))]


def test_every_figure_equals_its_definition_on_known_probabilities() -> None:
    # d = log 2, 0, log 2
    got = parity(learner=LEARNER, sampler=SAMPLER)
    assert got.tokens == 3
    assert got.kl_k1 == pytest.approx(-2 * math.log(2) / 3, rel=1e-6)
    assert got.kl_k3 == pytest.approx(2 * (1 - math.log(2)) / 3, rel=1e-6)
    # values of k3: a, 0, a with a = 1 - log 2; deviation a * sqrt(2) / 3
    assert got.kl_k3_stderr == pytest.approx(
        (1 - math.log(2)) * math.sqrt(2) / 3 / math.sqrt(3), rel=1e-6
    )
    assert got.logprob_abs_diff == pytest.approx(2 * math.log(2) / 3, rel=1e-6)
    assert got.token_mult_prob_error == pytest.approx(5 / 3, rel=1e-6)
    assert got.probs_diff_mean == pytest.approx((0.25 + 0.0 + 0.4) / 3, rel=1e-6)
    assert got.probs_diff_max == pytest.approx(0.4, rel=1e-6)


def test_the_estimates_approach_the_kl_divergence_from_sampler_to_learner() -> None:
    # Two categorical distributions, exact expectation under the sampler in place of many draws.
    p_sampler, p_learner = np.array([0.7, 0.2, 0.1]), np.array([0.5, 0.3, 0.2])
    exact = float((p_sampler * np.log(p_sampler / p_learner)).sum())
    counts = (p_sampler * 1000).round().astype(int)
    sampler = [np.repeat(np.log(p_sampler), counts).astype(np.float32)]
    learner = [np.repeat(np.log(p_learner), counts).astype(np.float32)]
    got = parity(learner=learner, sampler=sampler)
    assert got.kl_k1 == pytest.approx(exact, rel=1e-5)
    assert got.kl_k3 == pytest.approx(exact, rel=1e-5)
    backward = float((p_learner * np.log(p_learner / p_sampler)).sum())
    assert abs(backward - exact) > 1e-3, "the case must tell the two directions apart"


def test_equal_log_probabilities_give_exact_agreement() -> None:
    got = parity(learner=LEARNER, sampler=LEARNER)
    assert (got.kl_k1, got.kl_k3, got.probs_diff_max) == (0.0, 0.0, 0.0)
    assert got.token_mult_prob_error == 1.0


def test_tokens_weigh_equally_whatever_sequence_they_are_in() -> None:
    joined = parity(learner=[np.concatenate(LEARNER)], sampler=[np.concatenate(SAMPLER)])
    assert joined == parity(learner=LEARNER, sampler=SAMPLER)


def test_unequal_lengths_are_named() -> None:
    with pytest.raises(ValueError, match=r"sequences \[1\]"):
        parity(learner=LEARNER, sampler=[SAMPLER[0], SAMPLER[0]])


def test_a_value_that_is_not_finite_names_its_side() -> None:
    bad = [np.array([-np.inf], np.float32)]
    with pytest.raises(ValueError, match="the sampler gave"):
        parity(learner=[np.zeros(1, np.float32)], sampler=bad)


def test_no_tokens_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="no sampled token"):
        parity(learner=[], sampler=[])
