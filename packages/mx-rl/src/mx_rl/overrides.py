"""``--set section.key=value`` on top of a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from mx_rl.config import Config, keys, load, unknown_key
from mx_rl.errors import UserError


def apply_overrides(config: Config, assignments: Sequence[str]) -> Config:
    """``config`` with ``assignments`` such as ``optimizer.learning_rate=1e-5`` applied.

    Values are YAML (so JSON too): ``true``, ``null``, ``0.1``, ``[0.9, 0.95]``; ``task.options.x``
    reaches into the options of a task. Raises UserError naming the key and what was expected.
    """
    values = config.model_dump(mode="python")
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key:
            raise UserError(f"--set {assignment}: expected section.key=value")
        _set(values, key.strip(), _value(key, text))
    return load(values)


def _value(key: str, text: str) -> Any:
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"--set {key}: {text!r} is not a YAML value ({error})") from None
    if isinstance(value, str):
        return _number(value)
    return value


def _number(text: str) -> str | float:
    """YAML 1.1 reads ``1e-5`` as a string for want of a dot; people mean a number."""
    try:
        return float(text) if text[:1] in "+-.0123456789" else text
    except ValueError:
        return text


def _set(values: dict[str, Any], key: str, value: Any) -> None:
    parts = key.split(".")
    known = keys()
    if len(parts) == 1 and parts[0] in values:
        inside = ", ".join(item for item in known if item.startswith(f"{key}."))
        raise UserError(f"--set {key}: that is a section; set one of {inside}")
    open_ended = len(parts) == 3 and parts[:2] == ["task", "options"]
    if key not in known and not open_ended:
        raise UserError(f"--set {unknown_key(key)}")
    target = values
    for part in parts[:-1]:
        target = target[part]
    target[parts[-1]] = value
