from __future__ import annotations

from mx_rl.seeds import derive, examples_of_step


def test_every_purpose_and_step_has_a_seed_of_its_own() -> None:
    seeds = {derive(s, p, n) for s in range(3) for p in ("order", "sampling") for n in range(50)}
    assert len(seeds) == 300
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_seeds_stay_what_they_were() -> None:
    # A change here would change every run that is resumed across versions.
    assert (derive(0, "sampling", 0), derive(1, "order", 7)) == (1219480480, 472873396)


def test_one_pass_uses_every_example_once() -> None:
    seen = [i for step in range(5) for i in examples_of_step(3, step=step, count=4, size=20)]
    assert sorted(seen) == list(range(20))
    assert seen != list(range(20))


def test_passes_differ_and_a_step_may_span_two() -> None:
    flat = [i for step in range(6) for i in examples_of_step(3, step=step, count=5, size=10)]
    passes = [flat[0:10], flat[10:20], flat[20:30]]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert passes[0] != passes[1]
    spanning = [i for step in range(10) for i in examples_of_step(3, step=step, count=3, size=10)]
    assert spanning == flat
