"""Directories that appear whole or not at all, and the safetensors files in them."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor


@contextlib.contextmanager
def new_directory(target: str | os.PathLike[str]) -> Iterator[Path]:
    """A temporary directory that becomes ``target`` when the block ends without an exception.

    An earlier ``target`` is replaced at that moment. Raises FileExistsError if ``target`` is a
    file.
    """
    final = Path(target)
    if final.exists() and not final.is_dir():
        raise FileExistsError(f"{final} is a file; choose a directory to write to")
    final.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".tmp", dir=final.parent))
    try:
        work.chmod(0o755)
        yield work
        for path in work.iterdir():
            _sync(path)
        _replace(work, final)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    _sync(final.parent)


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """A safetensors file with the metadata that transformers and vLLM expect."""
    save_file({name: t.detach() for name, t in tensors.items()}, path, metadata={"format": "pt"})


def _replace(work: Path, final: Path) -> None:
    if not final.exists():
        work.rename(final)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".old", dir=final.parent))
    final.rename(old / final.name)
    work.rename(final)
    shutil.rmtree(old)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
