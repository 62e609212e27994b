import json
import subprocess
import zipfile

import pytest

from engines import build, series
from engines.errors import EngineError


def members(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_the_wheel_holds_the_patched_source_under_a_local_version(toy):
    wheel = toy.build()
    assert wheel.name == "toy-1.0+mx1-py3-none-any.whl"
    held = members(wheel)
    assert "two = 2\n" in held["toy/a.py"]
    assert held["toy/a.py"].endswith("eleven = 11\n")
    assert "Version: 1.0+mx1\n" in held["toy-1.0+mx1.dist-info/METADATA"]
    assert "Requires-Python: >=3.11\n" in held["toy-1.0+mx1.dist-info/METADATA"]
    assert "toy/a.py,sha256=" in held["toy-1.0+mx1.dist-info/RECORD"]


def test_provenance_names_the_source_wheel_and_every_patch(toy):
    held = members(toy.build())
    provenance = json.loads(held["toy-1.0+mx1.dist-info/provenance.json"])
    assert provenance["source"]["filename"] == toy.wheel.name
    assert [(p["file"], p["hunks"]) for p in provenance["patches"]] == [("0001-toy.patch", 2)]
    assert "toy-1.0+mx1.dist-info/patches/0001-toy.patch" in held


def test_two_builds_have_the_same_bytes(toy):
    assert toy.build(out="a").read_bytes() == toy.build(out="b").read_bytes()


def test_the_date_of_the_members_follows_source_date_epoch(toy, monkeypatch):
    plain = toy.build().read_bytes()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert toy.build().read_bytes() != plain


def test_an_unchanged_wheel_is_not_built_again(toy):
    before = toy.build().stat().st_mtime_ns
    assert toy.build().stat().st_mtime_ns == before


def test_a_changed_patch_or_a_damaged_wheel_is_built_again(toy):
    wheel = toy.build()
    good = wheel.read_bytes()
    wheel.write_bytes(b"damaged")
    assert toy.build().read_bytes() == good
    patch = toy.folder / "0001-toy.patch"
    toy.write_patch(patch.read_text().replace("eleven = 11", "eleven = 12"))
    assert "eleven = 12" in members(toy.build())["toy/a.py"]


def test_a_wheel_with_another_hash_is_refused(toy):
    toy.write_series(sha256="0" * 64)
    with pytest.raises(EngineError, match="sha256 .* pinned is 0000"):
        toy.build()


def test_a_build_inside_a_git_work_tree_still_applies_its_patches(toy, monkeypatch):
    subprocess.run(["git", "init", "--quiet", str(toy.root)], check=True)
    inside = toy.root / "tmp"
    inside.mkdir()
    monkeypatch.setattr(build.tempfile, "tempdir", str(inside))
    assert "two = 2\n" in members(toy.build())["toy/a.py"]


def test_an_empty_series_has_nothing_to_build(toy):
    (toy.folder / "0001-toy.patch").unlink()
    text = (toy.folder / "series.toml").read_text()
    (toy.folder / "series.toml").write_text(text.split("[[patch]]")[0])
    loaded = series.load(toy.root, engine="toy")
    with pytest.raises(EngineError, match="the series is empty"):
        build.build(loaded, pin=loaded.wheels[0], out=toy.root / "out")
