"""Typed failures of a sync.

Every error carries its facts twice: in a message for people (tensor, version, expected, found,
remedy) and in ``fields``, plain JSON values, so that an error raised in a sampler's process is
raised again in the learner's as the same type with the same facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

Json: TypeAlias = bool | int | float | str | list["Json"] | dict[str, "Json"] | None

_SHOWN = 8
"""How many items of a long list a message names; ``fields`` always holds all of them."""


def listed(items: list[str] | tuple[str, ...], *, separator: str = ", ") -> str:
    """The first few items, and how many more there are."""
    more = len(items) - _SHOWN
    return separator.join(items[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def explain(
    what: str,
    *,
    tensor: str | None = None,
    version: object = None,
    expected: object = None,
    found: object = None,
    remedy: str | None = None,
) -> str:
    """One message in the order that every error here keeps; facts that are None are left out."""
    facts: list[tuple[str, object]] = [
        ("tensor", tensor),
        ("version", version),
        ("expected", expected),
        ("found", found),
        ("remedy", remedy),
    ]
    told = "; ".join(f"{label}: {value}" for label, value in facts if value is not None)
    return f"{what} [{told}]" if told else what


class SyncError(RuntimeError):
    """Base of every failure of a sync.

    ``fields`` are JSON values. ``sink_health`` is filled in by ``session.sync``: sink name -> what
    that sink holds after the failure.
    """

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.fields: dict[str, Any] = fields
        self.sink_health: Mapping[str, str] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.fields)

    def _strings(self, key: str) -> tuple[str, ...]:
        value = self.fields.get(key, ())
        return tuple(str(item) for item in value)


class ManifestError(SyncError):
    """A manifest, or its encoding, is not valid."""


class SetMismatch(ManifestError):
    """The names in the manifest are not the names in the live sampler."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Names that the sampler has and the manifest does not deliver."""
        return self._strings("missing")

    @property
    def unexpected(self) -> tuple[str, ...]:
        """Names that the manifest delivers and the sampler does not have."""
        return self._strings("unexpected")


class VersionRefused(SyncError):
    """The version goes backwards within one run, and the caller did not ask for that."""


class ProtocolError(SyncError):
    """A call out of order, or a control message that is not valid."""


class CoverageError(SyncError):
    """A byte was delivered twice, or not at all, or belongs to nothing in the manifest."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors concerned."""
        return self._strings("names")


class ReadBackMismatch(SyncError):
    """What the sampler will compute with is not what the learner sent."""

    @property
    def names(self) -> tuple[str, ...]:
        """The tensors (or aliases) whose bytes differ."""
        return self._strings("names")


class SamplerPoisoned(SyncError):
    """The sampler holds no whole version: it refuses to generate until one sync succeeds."""


class SyncInProgress(SyncError):
    """A sync is open: the sampler holds parts of two versions and serves neither."""


class TransportError(SyncError):
    """The other process could not be reached, or what it said or mapped is not usable."""


class SharedMemoryExhausted(TransportError):
    """The shared memory file system has too little room for a transfer buffer."""


class RemoteFailure(SyncError):
    """The other process failed with an exception that is not one of this package's."""


_TYPES: dict[str, type[SyncError]] = {
    cls.__name__: cls
    for cls in (
        SyncError,
        ManifestError,
        SetMismatch,
        VersionRefused,
        ProtocolError,
        CoverageError,
        ReadBackMismatch,
        SamplerPoisoned,
        SyncInProgress,
        TransportError,
        SharedMemoryExhausted,
        RemoteFailure,
    )
}


def _rebuild(cls: type[SyncError], message: str, fields: dict[str, Any]) -> SyncError:
    return cls(message, **fields)


def to_wire(error: BaseException) -> dict[str, Json]:
    """``{type, message, fields}``, JSON values only."""
    if isinstance(error, SyncError):
        return {"type": type(error).__name__, "message": str(error), "fields": error.fields}
    kind = f"{type(error).__module__}.{type(error).__qualname__}"
    return {
        "type": RemoteFailure.__name__,
        "message": f"{kind}: {error}",
        "fields": {"exception": kind},
    }


def from_wire(wire: object) -> SyncError:
    """The typed error of ``to_wire``; an unknown type becomes RemoteFailure, its name kept."""
    if not isinstance(wire, dict):
        return RemoteFailure(f"an error that is not an object: {wire!r:.200}")
    message = str(wire.get("message", ""))
    name = str(wire.get("type", ""))
    fields = wire.get("fields")
    known = _TYPES.get(name)
    safe = (
        {key: value for key, value in fields.items() if key.isidentifier() and key != "message"}
        if isinstance(fields, dict)
        else {}
    )
    safe.pop("self", None)
    if known is None:
        return RemoteFailure(f"{name}: {message}", exception=name)
    return known(message, **safe)
