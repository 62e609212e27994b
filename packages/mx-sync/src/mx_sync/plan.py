"""Which byte of which tensor travels where: pure arithmetic on a manifest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from mx_sync.manifest import Manifest, TensorSpec

ALIGNMENT: Final = 64
"""Offsets in a bucket are multiples of this: any dtype can be viewed, and copies stay aligned."""


def aligned(nbytes: int) -> int:
    """``nbytes`` rounded up to ALIGNMENT."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True, slots=True)
class Slice:
    """``nbytes`` bytes of a part, from its byte ``start_byte`` on, lie at ``offset_bytes``."""

    tensor: str
    part: str
    start_byte: int
    nbytes: int
    offset_bytes: int


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """The buckets of one sync. Every byte of the manifest is in exactly one slice.

    A tensor that fits into one bucket is never split, so that the other side can place it as a
    view of the bucket; a larger one is cut at bucket borders.
    """

    buckets: tuple[tuple[Slice, ...], ...]
    bucket_bytes: int

    @classmethod
    def of(cls, manifest: Manifest, *, bucket_bytes: int) -> TransferPlan:
        """Tensors in manifest order, filled into buckets of at most ``bucket_bytes``.

        Raises:
            ValueError: ``bucket_bytes`` is not a positive multiple of 64.

        """
        if bucket_bytes <= 0 or bucket_bytes % ALIGNMENT:
            raise ValueError(
                f"bucket_bytes={bucket_bytes} must be a positive multiple of {ALIGNMENT}"
            )
        buckets: list[tuple[Slice, ...]] = []
        current: list[Slice] = []
        used = 0
        for spec in manifest.tensors:
            if used and used + _footprint(spec) > bucket_bytes:
                buckets.append(tuple(current))
                current, used = [], 0
            for part, start, nbytes in _pieces(spec):
                while nbytes:
                    if used == bucket_bytes:
                        buckets.append(tuple(current))
                        current, used = [], 0
                    taken = min(nbytes, bucket_bytes - used)
                    current.append(Slice(spec.name, part, start, taken, used))
                    used = aligned(used + taken)
                    start, nbytes = start + taken, nbytes - taken
        buckets.append(tuple(current))
        return cls(tuple(buckets), bucket_bytes)

    def nbytes(self, bucket: int) -> int:
        """How much of its buffer bucket number ``bucket`` fills, padding included."""
        last = self.buckets[bucket][-1]
        return aligned(last.offset_bytes + last.nbytes)

    @property
    def largest_bytes(self) -> int:
        """The buffer that every bucket fits into."""
        return max(self.nbytes(i) for i in range(len(self.buckets)))


def _footprint(spec: TensorSpec) -> int:
    return sum(aligned(part.nbytes) for part in spec.parts())


def _pieces(spec: TensorSpec) -> Iterator[tuple[str, int, int]]:
    return ((part.part, 0, part.nbytes) for part in spec.parts())
