"""Apply one patch to an unpacked wheel and prove, hunk by hunk, that it landed.

``git apply`` is strict about context, but inside a work tree it skips, with status 0, whatever
lies outside its idea of the current folder. So it runs where no repository can be seen, and its
word is not taken: every hunk is looked up in the files afterwards.
"""

import os
import re
import subprocess
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from engines.errors import EngineError

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_FAILED = re.compile(r"error: patch failed: (.+):(\d+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Hunk:
    """One change: where it starts (1-based lines) and the lines that it leaves behind."""

    path: str
    number: int
    header: str
    old_start: int
    new_start: int
    result: tuple[str, ...]

    def __str__(self) -> str:
        return f"hunk {self.number} of {self.path} ({self.header})"


def hunks(text: str, *, include: tuple[str, ...]) -> list[Hunk]:
    """The hunks of a patch whose file (after ``-p1``) matches one of the ``include`` globs."""
    found: list[Hunk] = []
    path = ""
    number = 0
    lines = text.split("\n")
    i = 0
    while i < len(lines):
        line = lines[i]
        i += 1
        if line.startswith("diff --git "):
            path, number = "", 0
        elif line.startswith("+++ b/"):
            path = line[len("+++ b/") :].split("\t")[0]
        elif path and (match := _HUNK.match(line)):
            number += 1
            body, i = _body(lines, i, old=int(match[2] or 1), new=int(match[4] or 1))
            if any(fnmatchcase(path, glob) for glob in include):
                found.append(Hunk(path, number, match[0], int(match[1]), int(match[3]), body))
    return found


def _body(lines: list[str], i: int, *, old: int, new: int) -> tuple[tuple[str, ...], int]:
    """The lines left behind by the hunk that starts at ``lines[i]``, and the index after it."""
    result: list[str] = []
    while old > 0 or new > 0:
        line = lines[i]
        i += 1
        if line.startswith("\\"):
            continue
        old -= not line.startswith("+")
        new -= not line.startswith("-")
        if not line.startswith("-"):
            result.append(line[1:])
    return tuple(result), i


def apply(patch: Path, *, root: Path, include: tuple[str, ...]) -> list[Hunk]:
    """Apply ``patch`` to the tree at ``root`` and return the hunks, all of which landed.

    Raises EngineError naming the patch file and the hunk when the patch is empty, does not apply,
    applies only in part, or lands on other lines than it says.
    """
    wanted = hunks(patch.read_text(encoding="utf-8"), include=include)
    if not wanted:
        raise EngineError(
            f"{patch.name}: no hunk touches anything in the wheel (paths {', '.join(include)}); "
            "drop the patch or mend its paths"
        )
    _git_apply(patch, wanted, root=root, include=include, options=())
    missing = [h for h in wanted if not _landed(h, root)]
    if missing:
        raise EngineError(
            f"{patch.name}: git apply reported success, but "
            + "; ".join(str(h) for h in missing)
            + " is not where the patch puts it; cut the patch again from the pinned version"
        )
    _git_apply(patch, wanted, root=root, include=include, options=("--reverse", "--check"))
    return wanted


def _landed(hunk: Hunk, root: Path) -> bool:
    path = root / hunk.path
    if not path.is_file():
        return False
    lines = path.read_text(encoding="utf-8").split("\n")
    start = hunk.new_start - 1
    return tuple(lines[start : start + len(hunk.result)]) == hunk.result


def _git_apply(
    patch: Path,
    wanted: list[Hunk],
    *,
    root: Path,
    include: tuple[str, ...],
    options: tuple[str, ...],
) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    env |= {"GIT_CEILING_DIRECTORIES": str(root.resolve().parent), "LC_ALL": "C"}
    command = ["git", "apply", "-p1", "--whitespace=nowarn", *options]
    command += [f"--include={glob}" for glob in include]
    done = subprocess.run(
        [*command, str(patch.resolve())],
        cwd=root.resolve(),
        env=env,
        text=True,
        capture_output=True,
        check=False,
    )
    if done.returncode == 0:
        return
    failed = _FAILED.search(done.stderr)
    hunk = failed and next(
        (h for h in wanted if h.path == failed[1] and h.old_start == int(failed[2])), None
    )
    where = str(hunk) if hunk else done.stderr.strip()
    raise EngineError(
        f"{patch.name}: {where} does not apply; the patch is stale or an earlier one changed the "
        "same lines. Cut it again from the pinned version"
    )
