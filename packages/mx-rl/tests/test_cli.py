from __future__ import annotations

from pathlib import Path

import pytest

from mx_rl.cli import main


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """One message on standard error, exit code 2, and nothing else."""
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("mx-rl: error: ")
    assert "Traceback" not in told.err
    return told.err


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MX_CACHE", str(tmp_path / "cache"))
    return tmp_path


OWN = (
    "--set",
    "engines.learner=bigram:BigramLearner",
    "--set",
    "engines.sampler=bigram:BigramSampler",
)


def test_a_wrong_model_path_says_what_is_accepted_and_leaves_no_run_behind(
    capsys: pytest.CaptureFixture[str], elsewhere: Path
) -> None:
    told = refused(capsys, "train", "tiny_easy", *OWN, "--set", "model.path=smolm2-135m")
    assert "did you mean 'smollm2-135m'" in told
    assert "config.json" in told
    assert list(elsewhere.iterdir()) == []


def test_a_directory_that_is_no_checkpoint_says_what_is_missing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "model").mkdir()
    told = refused(capsys, "train", *OWN, "--set", f"model.path={tmp_path / 'model'}")
    assert "has no config.json and no *.safetensors" in told


def test_an_adapter_that_is_not_installed_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    told = refused(capsys, "train", "tiny_easy", "--set", "engines.learner=nemo")
    assert "no adapter of that name is installed" in told


def test_an_unknown_recipe_key_and_part_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no recipe 'x'" in refused(capsys, "train", "x")
    assert "no such key" in refused(capsys, "demo", "--set", "run.step=3")
    assert "no such part" in refused(capsys, "bench", "--only", "generatin")


def test_resuming_what_is_no_run_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "is not a run directory" in refused(capsys, "train", "--resume", str(tmp_path))
    told = refused(capsys, "train", "tiny_easy", "--resume", str(tmp_path))
    assert "not both" in told


def test_an_export_needs_a_known_format_and_a_free_place(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    told = refused(capsys, "export", "x", "--format", "gguf", "--out", "y")
    assert "expected one of hf, mxfp8" in told
    assert "exists already" in refused(capsys, "export", "x", "--out", str(tmp_path))
