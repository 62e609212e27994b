"""Buckets between processes of one host, through memory that both map.

A segment never has a name (``O_TMPFILE``), so nothing is left behind, whoever is killed and
whenever: the kernel frees it with its last user. A peer opens it through the sender's entry in
``/proc`` and checks that it got the very file that was meant.

All memory is allocated (``posix_fallocate``) and mapped (``MAP_POPULATE``) before it is used, so
that a full file system is an error with numbers, not a SIGBUS, and a copy meets no page faults.
Segments are kept from sync to sync. Both processes must run as the same user and see each other in
``/proc`` (one host, one PID namespace).
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import secrets
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

import torch
from torch import Tensor

from mx_sync.errors import SharedMemoryExhausted, TransportError, explain

DIRECTORY: Final = "/dev/shm"
MAX_SEGMENTS: Final = 16

_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class SegmentPlace:
    """Where a peer finds a segment, and how it knows that it found the right one."""

    pid: int
    fd: int
    device: int
    inode: int
    nbytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Mapped memory. ``bytes``: uint8, one axis; the mapping lives as long as a view of it."""

    id: str
    fd: int
    bytes: Tensor

    @property
    def nbytes(self) -> int:
        """Bytes mapped: a multiple of the page size."""
        return self.bytes.numel()

    @property
    def place(self) -> SegmentPlace:
        """Valid as long as this process keeps the segment."""
        found = os.fstat(self.fd)
        return SegmentPlace(os.getpid(), self.fd, found.st_dev, found.st_ino, self.nbytes)


class ShmSender:
    """A ``Sender`` of ``slots`` segments, filled in turn and grown when a bucket needs more.

    Several ``SinkClient`` may share one. ``close`` it, or use it as a context manager.
    """

    def __init__(self, *, slots: int = 2, directory: str = DIRECTORY) -> None:
        if not 1 <= slots <= MAX_SEGMENTS:
            raise ValueError(f"slots={slots}, expected 1 to {MAX_SEGMENTS}")
        self._directory = directory
        self._slots: list[Segment | None] = [None] * slots
        self._turn = 0

    @property
    def slots(self) -> int:
        """How many segments there are."""
        return len(self._slots)

    @property
    def live(self) -> tuple[str, ...]:
        """The ids of the segments in use; a peer may drop every other."""
        return tuple(segment.id for segment in self._slots if segment is not None)

    def buffer(self, nbytes: int) -> Tensor:
        """The next slot's memory. Raises SharedMemoryExhausted when there is too little."""
        turn = self._turn
        segment = self._slots[turn]
        if segment is None or segment.nbytes < nbytes:
            if segment is not None:
                self._slots[turn] = None
                os.close(segment.fd)
            segment = self._slots[turn] = create_segment(nbytes, directory=self._directory)
        self._turn = (turn + 1) % len(self._slots)
        return segment.bytes

    def locate(self, buffer: Tensor) -> Segment:
        """The segment that ``buffer`` is the beginning of. Raises ValueError if there is none."""
        for segment in self._slots:
            if segment is not None and segment.bytes.data_ptr() == buffer.data_ptr():
                return segment
        raise ValueError(
            "the bucket's buffer is not shared memory of this sender; pack into sender.buffer()"
        )

    def close(self) -> None:
        """Let go of the segments; their memory is freed when the last view of it dies."""
        for turn, segment in enumerate(self._slots):
            if segment is not None:
                os.close(segment.fd)
                self._slots[turn] = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class ShmReceiver:
    """Maps a sender's segments, after checking that they are what the sender says."""

    def __init__(self) -> None:
        self._segments: dict[str, Tensor] = {}

    @property
    def attached(self) -> tuple[str, ...]:
        """The ids of the segments that are mapped now."""
        return tuple(self._segments)

    def attach(self, segment: str, *, place: SegmentPlace, live: Sequence[str]) -> None:
        """Map what lies at ``place`` as ``segment`` and drop what is not in ``live``.

        Raises:
            TransportError: bad ids, a place that cannot be opened, or a file there that is not
                the one meant: regular, of this user, fully allocated, of the size said.

        """
        ids = {segment, *live}
        if len(ids) > MAX_SEGMENTS or not all(_ID.fullmatch(known) for known in ids):
            raise TransportError(
                explain("bad segment ids", expected=f"<= {MAX_SEGMENTS}, 32 hex digits each")
            )
        self.keep(live)
        self._segments[segment] = _open_segment(place)

    def keep(self, live: Sequence[str]) -> None:
        """Drop every segment that is not in ``live``."""
        self._segments = {k: v for k, v in self._segments.items() if k in set(live)}

    def view(self, segment: str, *, nbytes: int) -> Tensor:
        """The first ``nbytes`` of ``segment``. Raises TransportError outside the mapping."""
        mapped = self._segments.get(segment)
        if mapped is None:
            raise TransportError(
                explain(
                    "a bucket in a segment that is not attached",
                    expected=f"one of {sorted(self._segments)}",
                    found=f"{segment!r:.80}",
                )
            )
        if not 0 < nbytes <= mapped.numel():
            raise TransportError(
                explain("bad bucket size", expected=f"1 to {mapped.numel()} bytes", found=nbytes)
            )
        return mapped[:nbytes]

    def close(self) -> None:
        """Drop every segment; memory is freed when the last view of it dies."""
        self._segments = {}


def create_segment(nbytes: int, *, directory: str) -> Segment:
    """A nameless, allocated and mapped segment. Raises SharedMemoryExhausted."""
    size = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE
    room = os.statvfs(directory)
    if size > room.f_bavail * room.f_frsize:
        # Asked first, because the attempt itself would fill the machine's memory.
        raise _exhausted(size, directory)
    fd = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        os.posix_fallocate(fd, 0, size)
        return Segment(secrets.token_hex(16), fd, _map(fd, size))
    except OSError as error:
        os.close(fd)
        if error.errno in (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT, errno.EFBIG):
            raise _exhausted(size, directory) from error
        raise


def _exhausted(size: int, directory: str) -> SharedMemoryExhausted:
    room = os.statvfs(directory)
    free = room.f_bavail * room.f_frsize
    text = explain(
        f"too little shared memory in {directory}",
        expected=f"{size} bytes for one transfer buffer",
        found=f"{free} bytes free",
        remedy="set a smaller sync.bucket_mib, or enlarge it (docker run --shm-size, or"
        f" mount -o remount,size=... {directory})",
    )
    return SharedMemoryExhausted(text, needed_bytes=size, free_bytes=free, path=directory)


def _open_segment(place: SegmentPlace) -> Tensor:
    remedy = "learner and sampler must be one user on one host, in one PID namespace"
    path = f"/proc/{place.pid}/fd/{place.fd}"
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        text = explain(f"cannot open the segment at {path}: {error.strerror}", remedy=remedy)
        raise TransportError(text) from error
    try:
        found = os.fstat(fd)
        if (
            not stat.S_ISREG(found.st_mode)
            or (found.st_dev, found.st_ino, found.st_size)
            != (place.device, place.inode, place.nbytes)
            or found.st_uid != os.geteuid()
            or found.st_blocks * 512 < place.nbytes
        ):
            text = explain(
                f"{path} is not the sender's segment",
                expected=f"a whole regular file of user {os.geteuid()}: {place}",
                found=f"mode {found.st_mode:o}, user {found.st_uid}, device {found.st_dev},"
                f" inode {found.st_ino}, {found.st_size} bytes",
                remedy=remedy,
            )
            raise TransportError(text)
        return _map(fd, place.nbytes)
    finally:
        os.close(fd)


def _map(fd: int, nbytes: int) -> Tensor:
    # mmap keeps a duplicate of fd; the tensor keeps the mapping.
    mapping = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    return torch.frombuffer(mapping, dtype=torch.uint8)
