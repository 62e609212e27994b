r"""A sink in another process: small JSON messages beside the shared memory, and no pickle.

A request is one line of JSON and, for ``begin``, the encoded manifest after it:

    {"schema": "mx-sync/control/1", "id": 7, "op": "write", ...}\\n
    {"schema": "mx-sync/control/1", "id": 7, "result": {...}}
    {"schema": "mx-sync/control/1", "id": 7, "error": {"type", "message", "fields"}}

``call`` is any function that carries bytes to ``SinkServer.handle`` and brings its bytes back: a
Ray actor's method, a pipe. Time limits are the channel's; it should raise ConnectionError, EOFError
or TimeoutError, which become TransportError here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from mx_sync.bucket import Bucket
from mx_sync.control import (
    SCHEMA,
    dump,
    ids_of,
    load,
    optional,
    place_of,
    readback_of,
    receipt_fields,
    receipt_of,
    slice_of,
    typed,
)
from mx_sync.errors import (
    ProtocolError,
    SyncError,
    TransportError,
    explain,
    from_wire,
    to_wire,
)
from mx_sync.manifest import Manifest
from mx_sync.ports import CommitReceipt, Readback, SinkStatus, WeightSink
from mx_sync.transports.shm import ShmReceiver, ShmSender


class SinkClient:
    """A ``WeightSink`` whose engine lives in another process of this host."""

    def __init__(
        self, call: Callable[[bytes], bytes], sender: ShmSender, *, name: str = "sampler"
    ) -> None:
        self.name = name
        self.sender = sender
        self._call = call
        self._ids = itertools.count(1)
        self._version: str | None = None
        self._attached: set[str] = set()

    def begin(self, manifest: Manifest, *, allow_rollback: bool = False) -> None:
        """Open the sync over there. Raises what the sink raises, or TransportError."""
        self._version = str(manifest.version)
        live = list(self.sender.live)
        answer = self._ask("begin", manifest.encode(), allow_rollback=allow_rollback, live=live)
        # Asked every time, so that a sampler that was restarted is simply attached again.
        self._attached = set(typed(answer, "attached", list))

    def write(self, bucket: Bucket) -> None:
        """Have the peer place a bucket of ``sender``; attaches its segment first if need be."""
        segment = self.sender.locate(bucket.buffer)
        if segment.id not in self._attached:
            live = list(self.sender.live)
            self._ask("attach", segment=segment.id, place=asdict(segment.place), live=live)
            self._attached.add(segment.id)
        slices = [[s.tensor, s.part, s.start_byte, s.nbytes, s.offset_bytes] for s in bucket.slices]
        nbytes = bucket.buffer.numel()
        self._ask(
            "write", sequence=bucket.sequence, segment=segment.id, nbytes=nbytes, slices=slices
        )

    def prepare(self, *, readback: Readback) -> CommitReceipt:
        """As ``WeightSink.prepare``."""
        return receipt_of(self._ask("prepare", readback=asdict(readback)))

    def publish(self) -> None:
        """As ``WeightSink.publish``."""
        self._ask("publish")

    def commit(self, *, readback: Readback) -> CommitReceipt:
        """As ``WeightSink.commit``."""
        return receipt_of(self._ask("commit", readback=asdict(readback)))

    def abort(self, reason: str) -> None:
        """As ``WeightSink.abort``."""
        self._ask("abort", reason=reason[:2000])

    def status(self) -> SinkStatus:
        """As ``WeightSink.status``."""
        answer = self._ask("status")
        return SinkStatus(*(optional(answer, key) for key in ("version", "poisoned", "open")))

    def require_ready(self) -> None:
        """As ``TransactionalSink.require_ready``, asked of the other process."""
        self._ask("require_ready")

    def _ask(self, op: str, body: bytes = b"", **fields: Any) -> dict[str, Any]:
        number = next(self._ids)
        header = {"schema": SCHEMA, "id": number, "op": op, **fields}
        try:
            raw = self._call(dump(header) + b"\n" + body)
        except (OSError, EOFError) as error:
            text = explain(
                f"{self.name} did not answer {op!r}: {type(error).__name__}: {error}",
                version=self._version,
                remedy="the sampler's process is gone or hangs: restart it, then sync again",
            )
            raise TransportError(text, sink=self.name, version=self._version, op=op) from error
        answer = self._decoded(raw, op, number)
        if "error" in answer:
            raise from_wire(answer["error"])
        return typed(answer, "result", dict)

    def _decoded(self, raw: bytes, op: str, number: int) -> dict[str, Any]:
        fault: SyncError | None = None
        try:
            answer = load(raw)
            if answer.get("id") == number:
                return answer
        except SyncError as error:
            fault = error
        text = explain(
            f"{self.name} answered something else than {op!r}",
            version=self._version,
            expected=f"{SCHEMA}, request {number}",
            found=fault or f"request {answer.get('id')!r:.40}",
            remedy="a late answer after a timeout: close this channel and open another",
        )
        raise TransportError(text, sink=self.name, version=self._version, op=op) from fault


class SinkServer:
    """Answers a ``SinkClient``. ``handle`` never raises for what a message contains."""

    def __init__(self, sink: WeightSink, receiver: ShmReceiver) -> None:
        self._sink = sink
        self._receiver = receiver

    def handle(self, message: bytes) -> bytes:
        """One request to one answer; every exception travels back as a typed error."""
        number: object = None
        try:
            line, _, body = bytes(message).partition(b"\n")
            header = load(line)
            number = typed(header, "id", int)
            result = self._dispatch(header, body)
        except Exception as error:
            return dump({"schema": SCHEMA, "id": number, "error": to_wire(error)})
        return dump({"schema": SCHEMA, "id": number, "result": result})

    def close(self) -> None:
        """Abort an open sync (the sender is gone) and unmap the segments."""
        self._sink.abort("the channel was closed")
        self._receiver.close()

    def _dispatch(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        op = typed(header, "op", str)
        handlers: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "attach": self._attach,
            "write": self._write,
            "prepare": lambda h: receipt_fields(self._sink.prepare(readback=readback_of(h))),
            "commit": lambda h: receipt_fields(self._sink.commit(readback=readback_of(h))),
            "publish": lambda _: self._sink.publish(),
            "abort": lambda h: self._sink.abort(typed(h, "reason", str)),
            "status": lambda _: asdict(self._sink.status()),
            "require_ready": lambda _: self._sink.require_ready(),
        }
        if op == "begin":
            return self._begin(header, body)
        if op not in handlers or body:
            raise ProtocolError(
                explain(
                    "unknown request", expected=f"one of {sorted(handlers)}", found=f"{op!r:.80}"
                )
            )
        return handlers[op](header) or {}

    def _begin(self, header: dict[str, Any], body: bytes) -> dict[str, Any]:
        live = ids_of(header)
        allow_rollback = typed(header, "allow_rollback", bool)
        self._sink.begin(Manifest.decode(body), allow_rollback=allow_rollback)
        self._receiver.keep(live)
        return {"attached": list(self._receiver.attached)}

    def _attach(self, header: dict[str, Any]) -> None:
        self._receiver.attach(
            typed(header, "segment", str), place=place_of(header), live=ids_of(header)
        )

    def _write(self, header: dict[str, Any]) -> None:
        view = self._receiver.view(
            typed(header, "segment", str), nbytes=typed(header, "nbytes", int)
        )
        slices = tuple(slice_of(item) for item in typed(header, "slices", list))
        self._sink.write(Bucket(typed(header, "sequence", int), slices, view))
