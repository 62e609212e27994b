import pytest

from mx_sync import Readback, WeightVersion

NAMES = tuple(f"t{i}" for i in range(20))


def test_all_and_off_choose_everything_and_nothing() -> None:
    version = WeightVersion("r", 1)
    assert Readback.ALL.choose(NAMES, version=version) == NAMES
    assert Readback.OFF.choose(NAMES, version=version) == ()


def test_a_sample_is_the_same_on_both_sides_and_another_for_every_version() -> None:
    sampled = Readback.sampled(0.3, seed=5)
    picks = [sampled.choose(NAMES, version=WeightVersion("r", step)) for step in range(30)]
    assert picks[0] == Readback("sampled", 0.3, 5).choose(NAMES, version=WeightVersion("r", 0))
    assert {len(set(pick)) for pick in picks} == {6}
    assert set().union(*picks) == set(NAMES)


def test_a_sample_reads_back_at_least_one_name() -> None:
    assert len(Readback.sampled(1e-9, seed=0).choose(NAMES, version=WeightVersion("r", 0))) == 1


@pytest.mark.parametrize("fraction", [0, -1, 1.1, float("nan")])
def test_a_fraction_that_is_none_is_refused(fraction: float) -> None:
    with pytest.raises(ValueError, match="read-back mode"):
        Readback.sampled(fraction, seed=0)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'most'"):
        Readback("most", 0.5, 0)
