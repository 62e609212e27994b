"""Seeds of completions."""

from __future__ import annotations

from mx_vllm.seeds import derive


def test_seeds_of_a_grid_of_completions_are_all_different_and_fit_63_bits() -> None:
    seeds = {derive(s, p, k) for s in range(4) for p in range(32) for k in range(32)}
    assert len(seeds) == 4 * 32 * 32
    assert all(0 <= seed < 2**63 for seed in seeds)


def test_neighbours_do_not_share_a_seed_by_moving_one_index_to_another() -> None:
    assert derive(1, 2, 3) != derive(1, 3, 2) != derive(2, 1, 3)
    assert derive(0, 0, 1) != derive(0, 1, 0) != derive(1, 0, 0)


def test_a_seed_is_the_same_on_every_machine() -> None:
    assert derive(7, 1, 2) == derive(7, 1, 2)
    assert derive(-1, 0, 0) >= 0
