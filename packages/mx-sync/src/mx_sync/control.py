r"""Control messages between a sink's client and server: strict JSON, and nothing else.

{"schema": "mx-sync/control/1", "id": 7, "op": "write", ...}\n<body>
{"schema": "mx-sync/control/1", "id": 7, "result": {...}}
{"schema": "mx-sync/control/1", "id": 7, "error": {"type", "message", "fields"}}
"""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

from mx_sync.codec import MAX_ENCODED_BYTES, load_json
from mx_sync.errors import ProtocolError, explain
from mx_sync.plan import Slice
from mx_sync.ports import CommitReceipt, Readback
from mx_sync.transports.shm import SegmentPlace

T = TypeVar("T")

SCHEMA: Final = "mx-sync/control/1"
MAX_HEADER_BYTES: Final = MAX_ENCODED_BYTES


def slice_of(item: object) -> Slice:
    """A slice from its five-item list. Raises ProtocolError."""
    if not isinstance(item, list) or [type(x) for x in item] != [str, str, int, int, int]:
        raise ProtocolError(
            explain(
                "bad slice",
                expected="[tensor, part, start_byte, nbytes, offset_bytes]",
                found=f"{item!r:.120}",
            )
        )
    return Slice(item[0], item[1], item[2], item[3], item[4])


def place_of(header: dict[str, Any]) -> SegmentPlace:
    """Where the segment of an "attach" lies. Raises ProtocolError."""
    fields = typed(header, "place", dict)
    if fields.keys() != set(SegmentPlace.__slots__):
        raise ProtocolError(explain("bad place", found=f"{fields!r:.120}"))
    return SegmentPlace(**{key: typed(fields, key, int) for key in fields})


def ids_of(header: dict[str, Any]) -> list[str]:
    """The ids of the live segments. Raises ProtocolError."""
    live = typed(header, "live", list)
    if not all(isinstance(item, str) for item in live):
        raise ProtocolError(explain("bad message", expected="live: strings", found=f"{live!r:.80}"))
    return live


def readback_of(header: dict[str, Any]) -> Readback:
    """The read-back that a request asks for. Raises ProtocolError."""
    fields = typed(header, "readback", dict)
    if fields.keys() != {"mode", "fraction", "seed"} or type(fields["seed"]) is not int:
        raise ProtocolError(explain("bad readback", found=f"{fields!r:.120}"))
    try:
        return Readback(str(fields["mode"]), float(fields["fraction"]), fields["seed"])
    except (TypeError, ValueError) as error:
        raise ProtocolError(explain("bad readback", found=f"{error!s:.200}")) from None


def receipt_fields(receipt: CommitReceipt) -> dict[str, Any]:
    """A receipt as JSON values."""
    return {
        "version": receipt.version,
        "tensors": receipt.tensors,
        "nbytes": receipt.nbytes,
        "digests": dict(receipt.digests),
        "seconds": dict(receipt.seconds),
    }


def typed(fields: dict[str, Any], key: str, kind: type[T]) -> T:
    """``fields[key]`` if it is exactly a ``kind``. Raises ProtocolError."""
    value = fields.get(key)
    if type(value) is not kind:
        raise ProtocolError(
            explain("bad message", expected=f"{key}: {kind.__name__}", found=f"{value!r:.120}")
        )
    return value


def optional(fields: dict[str, Any], key: str) -> str | None:
    """``fields[key]`` if it is a string, None if it is null or absent. Raises ProtocolError."""
    return None if fields.get(key) is None else str(typed(fields, key, str))


def dump(value: object) -> bytes:
    """JSON on one line. Raises ValueError for NaN and infinities."""
    # ASCII only: no raw newline, and names that UTF-8 cannot hold survive as escapes.
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode("ascii")


def load(data: bytes) -> dict[str, Any]:
    """A message of this schema. Raises ProtocolError or ManifestError (malformed JSON)."""
    message = load_json(data, max_bytes=MAX_HEADER_BYTES)
    if not isinstance(message, dict) or message.get("schema") != SCHEMA:
        raise ProtocolError(explain("not a message", expected=SCHEMA, found=f"{message!r:.120}"))
    return message


def receipt_of(answer: dict[str, Any]) -> CommitReceipt:
    """The inverse of ``receipt_fields``. Raises ProtocolError."""
    digests, seconds = typed(answer, "digests", dict), typed(answer, "seconds", dict)
    if not all(isinstance(x, str) for x in digests.values()) or not all(
        type(x) in (int, float) for x in seconds.values()
    ):
        raise ProtocolError(explain("bad receipt", expected="digests: strings; seconds: numbers"))
    return CommitReceipt(
        version=typed(answer, "version", str),
        tensors=typed(answer, "tensors", int),
        nbytes=typed(answer, "nbytes", int),
        digests=digests,
        seconds=seconds,
    )
