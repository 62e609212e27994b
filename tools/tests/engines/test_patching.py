import subprocess

import pytest

from engines import patching
from engines.errors import EngineError

INCLUDE = ("toy/*",)


def tree(toy, source):
    root = toy.root / "tree"
    (root / "toy").mkdir(parents=True)
    (root / "toy" / "a.py").write_text(source)
    return root


def source_of(toy):
    import zipfile

    with zipfile.ZipFile(toy.wheel) as archive:
        return archive.read("toy/a.py").decode()


def test_every_hunk_that_landed_is_returned(toy):
    root = tree(toy, source_of(toy))
    landed = patching.apply(toy.folder / "0001-toy.patch", root=root, include=INCLUDE)
    assert [(h.path, h.number, h.new_start) for h in landed] == [
        ("toy/a.py", 1, 1),
        ("toy/a.py", 2, 8),
    ]


def test_a_stale_hunk_is_named_with_its_patch(toy):
    root = tree(toy, source_of(toy).replace("nine = 9", "nine = 99"))
    with pytest.raises(
        EngineError, match=r"0001-toy.patch: hunk 2 of toy/a.py \(@@ -8,3 \+8,4 @@\)"
    ):
        patching.apply(toy.folder / "0001-toy.patch", root=root, include=INCLUDE)


def test_a_hunk_that_lands_on_other_lines_is_named(toy):
    moved = source_of(toy).replace("\n\n\n\n\n", "\n\n\n\n\n\n\n")
    root = tree(toy, moved)
    with pytest.raises(EngineError, match="hunk 2 of toy/a.py .* is not where the patch puts it"):
        patching.apply(toy.folder / "0001-toy.patch", root=root, include=INCLUDE)


def test_a_missing_file_is_named(toy):
    root = tree(toy, source_of(toy))
    (root / "toy" / "a.py").unlink()
    with pytest.raises(EngineError, match="0001-toy.patch: .*toy/a.py"):
        patching.apply(toy.folder / "0001-toy.patch", root=root, include=INCLUDE)


def test_a_patch_that_touches_nothing_of_the_wheel_is_refused(toy):
    root = tree(toy, source_of(toy))
    with pytest.raises(EngineError, match="no hunk touches anything in the wheel"):
        patching.apply(toy.folder / "0001-toy.patch", root=root, include=("other/*",))


def test_the_word_of_git_apply_is_not_taken(toy, monkeypatch):
    """Inside a work tree git skips files silently: stand-in for a run that did nothing."""
    root = tree(toy, source_of(toy))
    real = subprocess.run
    monkeypatch.setattr(
        patching.subprocess, "run", lambda command, **options: real(["true"], **options)
    )
    with pytest.raises(EngineError, match="git apply reported success, but hunk 1 of toy/a.py"):
        patching.apply(toy.folder / "0001-toy.patch", root=root, include=INCLUDE)
