"""Adapters by entry point, and objects by import path."""

from __future__ import annotations

import importlib
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from mx_rl.errors import UserError, did_you_mean

GROUPS = {"learner": "mx.learners", "sampler": "mx.samplers"}

_PACKAGES = {"megatron": "mx-megatron", "vllm": "mx-vllm", "sglang": "mx-sglang"}


def adapters(role: str) -> dict[str, EntryPoint]:
    """The installed adapters for "learner" or "sampler", by name."""
    return {point.name: point for point in entry_points(group=GROUPS[role])}


def require_adapter(role: str, name: str) -> None:
    """Raises UserError unless ``find_adapter`` would find ``name``; imports nothing."""
    if ":" in name:
        return
    found = adapters(role)
    if name not in found:
        remedy = f"; install {_PACKAGES[name]}" if name in _PACKAGES else ""
        raise UserError(
            f"engines.{role}={name!r}: no adapter of that name is installed"
            f"{did_you_mean(name, found)} (installed: {', '.join(found) or 'none'}){remedy}"
        )


def find_adapter(role: str, name: str) -> Any:
    """The adapter class called ``name``, or the one at ``module:Class``.

    Raises UserError if it is not installed, or cannot be imported, with the reason.
    """
    if ":" in name:
        return import_object(name, what=f"engines.{role}")
    require_adapter(role, name)
    found = adapters(role)
    try:
        return found[name].load()
    except ImportError as error:
        raise UserError(
            f"engines.{role}={name!r} is installed as {found[name].value} but cannot be imported: "
            f"{error}. Install its engine, or see mx-rl doctor"
        ) from error


def import_object(path: str, *, what: str) -> Any:
    """The object at ``module:name``. Raises UserError that says which part is missing."""
    module, colon, name = path.partition(":")
    if not (module and colon and name):
        raise UserError(f"{what} {path!r}: expected module:name")
    try:
        loaded = importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and module.split(".")[0] != error.name.split(".")[0]:
            raise
        raise UserError(
            f"{what} {path!r}: no module {module!r}; is its folder on PYTHONPATH?"
        ) from error
    if not hasattr(loaded, name):
        public = [item for item in vars(loaded) if not item.startswith("_")]
        raise UserError(f"{what} {path!r}: {module} has no {name!r}{did_you_mean(name, public)}")
    return getattr(loaded, name)
