import pytest

from mx_sync import WeightVersion


@pytest.mark.parametrize("text", ["r@0", "2026-01-02/a.b:c+d@9007199254740991"])
def test_a_version_is_parsed_back_from_its_text(text: str) -> None:
    assert str(WeightVersion.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "r", "@1", "r@", "r@-1", "r@01", "r@1.0", "r@ 1", "r r@1", "r@9007199254740992", "é@1"],
)
def test_text_that_is_not_a_version_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        WeightVersion.parse(text)


@pytest.mark.parametrize("step", [True, 1.0, "1", None])
def test_a_step_that_is_not_an_integer_is_refused(step: object) -> None:
    with pytest.raises(ValueError, match="is not an integer"):
        WeightVersion("r", step)  # type: ignore[arg-type]


def test_versions_of_one_run_are_ordered_by_step() -> None:
    early, late = WeightVersion("r", 2), WeightVersion("r", 10)
    assert early < late
    assert late > early
    assert early <= late
    assert late >= early
    assert not late < early


def test_versions_of_two_runs_have_no_order_but_differ() -> None:
    one, other = WeightVersion("a", 1), WeightVersion("b", 1)
    assert one != other
    with pytest.raises(ValueError, match="different runs"):
        _ = one < other
