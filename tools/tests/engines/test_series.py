from pathlib import Path

import pytest

from engines import series
from engines.errors import EngineError

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("versions", "version", "expected"),
    [
        (">=0.19,<0.20", "0.19.2", True),
        (">=0.19,<0.20", "0.20", False),
        (">=0.19,<0.20", "0.18.9", False),
        ("==1.0", "1.0.0", True),
        (">1.0", "1.0.0", False),
        ("<=2", "2.0", True),
    ],
)
def test_a_range_admits_the_versions_between_its_bounds(versions, version, expected):
    assert series.admits(versions, version) is expected


def test_a_range_that_cannot_be_read_is_an_error():
    with pytest.raises(EngineError, match="cannot read the clause"):
        series.admits("~=1.0", "1.0")


def test_an_unknown_engine_is_answered_with_the_known_ones(toy):
    with pytest.raises(EngineError, match=r"engine 'tey' is unknown; known: toy"):
        series.load(toy.root, engine="tey")


def test_a_patch_that_is_not_listed_is_named(toy):
    toy.write_patch("", name="0002-stray.patch")
    with pytest.raises(EngineError, match=r"0002-stray.patch is there and not listed"):
        series.load(toy.root, engine="toy")


def test_a_listed_patch_that_is_missing_is_named(toy):
    (toy.folder / "0001-toy.patch").unlink()
    with pytest.raises(EngineError, match=r"0001-toy.patch is listed and not there"):
        series.load(toy.root, engine="toy")


def test_a_patch_for_another_version_than_the_pin_is_named(toy):
    toy.write_series(versions=">=2")
    with pytest.raises(EngineError, match=r"0001-toy.patch is for >=2, the pin is 1.0"):
        series.load(toy.root, engine="toy")


def test_a_python_without_a_pinned_wheel_is_answered_with_the_pinned_ones(toy):
    loaded = series.load(toy.root, engine="toy")
    with pytest.raises(EngineError, match="pinned: Python 3.11 on x86_64"):
        loaded.pin(python="3.9", machine="x86_64")


@pytest.mark.parametrize("engine", series.engines(ROOT))
def test_the_series_of_this_repository_are_valid(engine):
    loaded = series.load(ROOT, engine=engine)
    assert loaded.engine == engine
    for patch in loaded.patches:
        text = patch.path.read_text()
        assert text.startswith("From ")
        assert "\nSubject: [PATCH " in text
        assert "\nTest: " in text
        assert len(text.splitlines()) <= 150
