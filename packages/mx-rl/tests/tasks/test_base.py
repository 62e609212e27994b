from __future__ import annotations

import pytest

from mx_rl.tasks import extract_answer


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", "7"),
        ("The answer is 12.", "12"),
        ("5 - 9 = -4", "-4"),
        ("4+3=7", "7"),
        ("5-9=-4", "-4"),
        ("It is 1,024 in all", "1024"),
        ("3.50 then", "3.50"),
        ("no idea", None),
        ("", None),
    ],
)
def test_the_last_number_is_found(text: str, number: str | None) -> None:
    assert extract_answer(text, how="last_number") == number


def test_a_difference_is_not_read_as_a_negative_number() -> None:
    assert extract_answer("I think 9-4", how="last_number") == "4"


def test_the_last_answer_tag_counts() -> None:
    text = "<answer>1</answer> no, <answer> 2\n</answer>"
    assert extract_answer(text, how="answer_tag") == "2"
    assert extract_answer("2", how="answer_tag") is None


def test_text_is_taken_whole_without_surrounding_space() -> None:
    assert extract_answer(" a b\n", how="text") == "a b"


def test_another_way_is_refused() -> None:
    with pytest.raises(ValueError, match="expected last_number"):
        extract_answer("x", how="regex")
