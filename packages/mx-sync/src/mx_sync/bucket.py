"""Buckets: whole tensors into a byte buffer on one side, out of it again on the other.

``Packer`` makes the only copy of the learner's side. ``Assembler`` makes none for a tensor that
lies inside one bucket (it hands out views) and one for a tensor that was cut. Its ledger accepts
every byte of the manifest exactly once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mx_quant.digest import digest
from mx_quant.tensor import MXTensor
from mx_sync.errors import CoverageError, ManifestError, ProtocolError, explain, listed
from mx_sync.manifest import DTYPE_NAMES, Manifest, PartSpec, TensorSpec
from mx_sync.plan import ALIGNMENT, Slice


@dataclass(frozen=True, slots=True, eq=False)
class Bucket:
    """Bucket number ``sequence`` of a sync. ``buffer``: uint8, one axis, CPU, contiguous.

    The buffer belongs to the sender, which reuses it once ``WeightSink.write`` has returned.
    """

    sequence: int
    slices: tuple[Slice, ...]
    buffer: Tensor

    def __post_init__(self) -> None:
        buffer = self.buffer
        if buffer.dtype != torch.uint8 or buffer.ndim != 1 or not buffer.is_contiguous():
            raise ValueError(
                "a bucket's buffer is a contiguous uint8 tensor of one axis, not"
                f" {buffer.dtype} {tuple(buffer.shape)}"
            )


def describe_form(value: MXTensor | Tensor) -> str:
    """What a tensor is, for messages and comparisons: "bf16 (3, 4)" or "mxfp8 (64, 32)"."""
    if isinstance(value, MXTensor):
        along = "" if value.axis == -1 else f" axis {value.axis}"
        return f"{value.grid.id} {tuple(value.shape)}{along}"
    return f"{DTYPE_NAMES.get(value.dtype, str(value.dtype))} {tuple(value.shape)}"


def spec_form(spec: TensorSpec) -> str:
    """The ``describe_form`` of every tensor that fits ``spec``."""
    return f"{spec.dtype if spec.grid is None else spec.grid.id} {spec.shape}"


def spec_of(name: str, value: MXTensor | Tensor) -> TensorSpec:
    """The spec of a tensor as it is now, its digest included.

    Raises:
        ManifestError: a dtype that does not travel, no elements, or blocks not along the last axis.

    """
    if isinstance(value, MXTensor):
        if value.axis != -1:
            raise ManifestError(
                explain(
                    "not canonical", tensor=name, expected="axis -1", found=f"axis {value.axis}"
                )
            )
        dtype, grid = DTYPE_NAMES[value.elements.dtype], value.grid
        return TensorSpec(name, tuple(value.shape), dtype, grid, digest(value))
    if value.dtype not in DTYPE_NAMES:
        text = explain(
            "a dtype that does not travel",
            tensor=name,
            expected=" | ".join(DTYPE_NAMES.values()),
            found=value.dtype,
        )
        raise ManifestError(text)
    return TensorSpec(name, tuple(value.shape), DTYPE_NAMES[value.dtype], None, digest(value))


def byte_views(value: MXTensor | Tensor) -> dict[str, Tensor]:
    """Part -> its bytes, uint8 on one axis; views where the tensor is contiguous."""
    if isinstance(value, MXTensor):
        return {"elements": _flat(value.elements), "scales": _flat(value.scales)}
    return {"data": _flat(value)}


def _flat(tensor: Tensor) -> Tensor:
    return tensor.detach().contiguous().view(-1).view(torch.uint8)


class Packer:
    """Copies slices of a learner's tensors into buffers. Asks for each tensor once, in order."""

    def __init__(self, manifest: Manifest, *, tensor: Callable[[str], MXTensor | Tensor]) -> None:
        self._manifest = manifest
        self._tensor = tensor
        self._name: str | None = None
        self._views: dict[str, Tensor] = {}

    def pack(self, slices: Sequence[Slice], *, out: Tensor) -> None:
        """Copy ``slices`` to their offsets in ``out`` (uint8, one axis).

        Raises:
            ManifestError: the source returns another dtype, grid or shape than its manifest says.

        """
        for piece in slices:
            if piece.tensor != self._name:
                self._views = self._fetch(piece.tensor)
                self._name = piece.tensor
            stop = piece.start_byte + piece.nbytes
            out[piece.offset_bytes : piece.offset_bytes + piece.nbytes].copy_(
                self._views[piece.part][piece.start_byte : stop]
            )

    def _fetch(self, name: str) -> dict[str, Tensor]:
        value = self._tensor(name)
        spec = self._manifest.spec(name)
        expected, found = spec_form(spec), describe_form(value)
        if expected != found:
            text = explain(
                "the source's tensor is not what its manifest says",
                tensor=name,
                version=self._manifest.version,
                expected=expected,
                found=found,
            )
            raise ManifestError(text, tensor=name, expected=expected, found=found)
        return byte_views(value)


class _Intervals:
    """Disjoint half-open byte ranges, kept sorted and merged."""

    __slots__ = ("_starts", "_stops")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []

    def add(self, start: int, stop: int) -> bool:
        """Add a range; False, and nothing changes, if a byte of it is already there."""
        at = bisect_right(self._starts, start)
        left = at > 0 and self._stops[at - 1] >= start
        right = at < len(self._starts) and self._starts[at] <= stop
        if (left and self._stops[at - 1] > start) or (right and self._starts[at] < stop):
            return False
        if left and right:
            self._stops[at - 1] = self._stops[at]
            del self._starts[at], self._stops[at]
        elif left:
            self._stops[at - 1] = stop
        elif right:
            self._starts[at] = start
        else:
            self._starts.insert(at, start)
            self._stops.insert(at, stop)
        return True

    def covers(self, nbytes: int) -> bool:
        return self._starts == [0] and self._stops == [nbytes]

    def __str__(self) -> str:
        ranges = [f"{a}-{b}" for a, b in zip(self._starts, self._stops, strict=True)]
        return listed(ranges) or "nothing"


class Assembler:
    """Turns the buckets of one version back into tensors.

    Owns the coverage ledger: a slice that is unknown, out of range or already delivered is
    refused before a byte of its bucket is used, and ``require_complete`` lists what never came.
    """

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest
        self._parts: dict[tuple[str, str], PartSpec] = {
            (spec.name, part.part): part for spec in manifest.tensors for part in spec.parts()
        }
        self._received: dict[tuple[str, str], _Intervals] = {}
        self._held: dict[str, dict[str, Tensor]] = {}
        self._next = 0

    def add(self, bucket: Bucket) -> Iterator[tuple[str, MXTensor | Tensor]]:
        """The tensors that ``bucket`` completes. Consume it before the buffer is reused.

        The tensors may be views of the buffer.

        Raises:
            ProtocolError: not the bucket that comes next.
            CoverageError: slices that do not fit the manifest, the buffer or what already came.

        """
        if bucket.sequence != self._next:
            text = explain(
                "bucket out of sequence",
                version=self._manifest.version,
                expected=self._next,
                found=bucket.sequence,
            )
            raise ProtocolError(text, expected=self._next, found=bucket.sequence)
        self._next += 1
        self._record(bucket)
        here: dict[str, dict[str, Slice]] = {}
        for piece in bucket.slices:
            if piece.nbytes == self._parts[piece.tensor, piece.part].nbytes:
                here.setdefault(piece.tensor, {})[piece.part] = piece
        return self._completed(bucket, here)

    def require_complete(self) -> None:
        """Raise CoverageError naming every tensor of which a byte has not arrived."""
        lacking: dict[str, str] = {}
        for (name, part), spec in self._parts.items():
            got = self._received.get((name, part))
            if got is None or not got.covers(spec.nbytes):
                lacking[name] = f"{name} ({part}: {got or 'nothing'} of {spec.nbytes} bytes)"
        if lacking:
            text = explain(
                f"{len(lacking)} of {len(self._manifest.tensors)} tensors did not arrive whole:"
                f" {listed(list(lacking.values()))}",
                version=self._manifest.version,
                remedy="send every bucket of the plan, then commit",
            )
            raise CoverageError(text, names=list(lacking))

    def _record(self, bucket: Bucket) -> None:
        size = bucket.buffer.numel()
        faults: dict[str, str] = {}
        for piece in bucket.slices:
            fault = self._fault(piece, size)
            if fault is not None:
                faults[piece.tensor] = f"{piece.tensor!r:.200} {piece.part!r:.40}: {fault}"
        if faults:
            text = explain(
                f"bucket {bucket.sequence} does not fit: {listed(list(faults.values()))}",
                version=self._manifest.version,
                remedy="pack buckets by TransferPlan, and send each of them once",
            )
            raise CoverageError(text, names=list(faults))

    def _fault(self, piece: Slice, size: int) -> str | None:
        part = self._parts.get((piece.tensor, piece.part))
        if part is None:
            return "no such part in the manifest"
        stop = piece.start_byte + piece.nbytes
        if piece.nbytes < 1 or piece.start_byte < 0 or stop > part.nbytes:
            return f"bytes {piece.start_byte}-{stop} of {part.nbytes}"
        end = piece.offset_bytes + piece.nbytes
        if piece.offset_bytes < 0 or piece.offset_bytes % ALIGNMENT or end > size:
            return f"at {piece.offset_bytes}-{end} of a buffer of {size} bytes"
        ledger = self._received.setdefault((piece.tensor, piece.part), _Intervals())
        if not ledger.add(piece.start_byte, stop):
            return f"bytes {piece.start_byte}-{stop} overlap what already came ({ledger})"
        return None

    def _completed(
        self, bucket: Bucket, here: dict[str, dict[str, Slice]]
    ) -> Iterator[tuple[str, MXTensor | Tensor]]:
        touched = dict.fromkeys(piece.tensor for piece in bucket.slices)
        whole = {name for name in touched if len(here.get(name, ())) == self._part_count(name)}
        for piece in bucket.slices:
            if piece.tensor not in whole:
                self._hold(piece, bucket.buffer)
        for name in touched:
            if name in whole:
                views = {
                    part: bucket.buffer[s.offset_bytes : s.offset_bytes + s.nbytes]
                    for part, s in here[name].items()
                }
                yield name, self._tensor(name, views)
            elif self._arrived(name):
                yield name, self._tensor(name, self._held.pop(name))

    def _hold(self, piece: Slice, buffer: Tensor) -> None:
        held = self._held.setdefault(piece.tensor, {})
        if piece.part not in held:
            nbytes = self._parts[piece.tensor, piece.part].nbytes
            held[piece.part] = torch.empty(nbytes, dtype=torch.uint8)
        held[piece.part][piece.start_byte : piece.start_byte + piece.nbytes].copy_(
            buffer[piece.offset_bytes : piece.offset_bytes + piece.nbytes]
        )

    def _part_count(self, name: str) -> int:
        return len(self._manifest.spec(name).parts())

    def _arrived(self, name: str) -> bool:
        return all(
            (name, part.part) in self._received
            and self._received[name, part.part].covers(part.nbytes)
            for part in self._manifest.spec(name).parts()
        )

    def _tensor(self, name: str, views: dict[str, Tensor]) -> MXTensor | Tensor:
        spec = self._manifest.spec(name)
        shaped = {
            part.part: views[part.part].view(part.dtype).view(part.shape) for part in spec.parts()
        }
        if spec.grid is None:
            return shaped["data"]
        return MXTensor(shaped["elements"], shaped["scales"], spec.grid)
