from pathlib import Path

import pytest

import version_guard

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def repository(tmp_path):
    (tmp_path / "VERSION").write_text("0.1.0\n")
    for name, dependencies in {"mx-a": '["torch"]', "mx-b": '["mx-a==0.1.0", "numpy"]'}.items():
        folder = tmp_path / "packages" / name
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(
            f'[project]\nname = "{name}"\nversion = "0.1.0"\ndependencies = {dependencies}\n'
        )
    return tmp_path


def tamper(repository, name, old, new):
    path = repository / "packages" / name / "pyproject.toml"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_equal_versions_and_pins_are_accepted(repository):
    assert version_guard.problems(repository) == []


def test_a_tampered_version_is_caught_with_its_file(repository):
    tamper(repository, "mx-a", 'version = "0.1.0"', 'version = "0.1.1"')
    assert version_guard.problems(repository) == [
        "packages/mx-a/pyproject.toml: version is '0.1.1', VERSION is '0.1.0'"
    ]


@pytest.mark.parametrize("pin", ["mx-a", "mx-a>=0.1.0", "mx_a==0.2.0", "mx-a[extra]==0.1"])
def test_a_sibling_that_is_not_pinned_to_the_version_is_caught(repository, pin):
    tamper(repository, "mx-b", "mx-a==0.1.0", pin)
    [problem] = version_guard.problems(repository)
    assert problem.startswith("packages/mx-b/pyproject.toml: ")
    assert "must be pinned as mx-a==0.1.0" in problem


def test_a_pin_with_an_extra_and_a_marker_is_accepted(repository):
    tamper(repository, "mx-b", "mx-a==0.1.0", "mx-a[x] == 0.1.0 ; python_version > '3'")
    assert version_guard.problems(repository) == []


def test_pins_in_extras_are_checked_too(repository):
    path = repository / "packages" / "mx-b" / "pyproject.toml"
    path.write_text(path.read_text() + '[project.optional-dependencies]\nall = ["mx-a>=0"]\n')
    assert len(version_guard.problems(repository)) == 1


def test_a_dynamic_version_is_caught(repository):
    tamper(repository, "mx-a", 'version = "0.1.0"', 'dynamic = ["version"]')
    assert "the version is dynamic" in version_guard.problems(repository)[0]


def test_this_repository_has_one_version():
    assert version_guard.problems(ROOT) == []
