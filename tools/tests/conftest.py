import hashlib
import sys
import zipfile
from pathlib import Path

import pytest

TOOLS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TOOLS))

PATCH = """\
From 0000000000000000000000000000000000000000 Mon Sep 17 00:00:00 2001
From: A Developer <a@localhost>
Date: Tue, 1 Dec 2026 12:00:00 +0000
Subject: [PATCH 1/1] toy: count to three

---
diff --git a/toy/a.py b/toy/a.py
index 1111111..2222222 100644
--- a/toy/a.py
+++ b/toy/a.py
@@ -1,3 +1,3 @@
 one = 1
-two = 3
+two = 2
 three = 3
@@ -8,3 +8,4 @@ eight
 eight = 8
 nine = 9
 ten = 10
+eleven = 11
"""
SOURCE = "one = 1\ntwo = 3\nthree = 3\n\n\n\n\neight = 8\nnine = 9\nten = 10\n"


class Toy:
    """A repository with one engine, ``toy``, whose wheel holds one module."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "patches" / "toy"
        self.folder.mkdir(parents=True)
        self.wheel = root / "toy-1.0-py3-none-any.whl"
        self.write_wheel(SOURCE)
        self.write_patch(PATCH)
        self.write_series()

    def write_wheel(self, source: str) -> None:
        metadata = (
            "Metadata-Version: 2.1\nName: toy\nVersion: 1.0\nRequires-Python: >=3.12\n\nToy.\n"
        )
        tag = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        with zipfile.ZipFile(self.wheel, "w") as archive:
            archive.writestr("toy/a.py", source)
            archive.writestr("toy-1.0.dist-info/METADATA", metadata)
            archive.writestr("toy-1.0.dist-info/WHEEL", tag)
            archive.writestr("toy-1.0.dist-info/RECORD", "")

    def write_patch(self, text: str, *, name: str = "0001-toy.patch") -> None:
        (self.folder / name).write_text(text)

    def write_series(self, *, sha256: str | None = None, versions: str = ">=1,<2") -> None:
        found = hashlib.sha256(self.wheel.read_bytes()).hexdigest()
        (self.folder / "series.toml").write_text(
            f"""
engine = "toy"
version = "1.0"
local = "mx1"
base = "v1.0"
reason = "a test"
requires-python = ">=3.11"
include = ["toy/*"]
[[wheel]]
python = "3.11"
machine = "x86_64"
filename = "{self.wheel.name}"
sha256 = "{sha256 or found}"
[[patch]]
file = "0001-toy.patch"
reason = "two is wrong"
upstream = "to be sent"
versions = "{versions}"
remove-when = "upstream counts"
"""
        )

    def build(self, *, out: str = "out") -> Path:
        from engines import build, series

        loaded = series.load(self.root, engine="toy")
        pin = loaded.pin(python="3.11", machine="x86_64")
        return build.build(loaded, pin=pin, out=self.root / out, source=self.wheel)


@pytest.fixture
def toy(tmp_path: Path) -> Toy:
    return Toy(tmp_path)
