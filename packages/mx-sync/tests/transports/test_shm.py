import os
import secrets
from dataclasses import replace
from pathlib import Path

import pytest

from mx_sync import SharedMemoryExhausted, ShmReceiver, ShmSender, TransportError
from mx_sync.transports.shm import SegmentPlace, create_segment


def attached(sender: ShmSender, receiver: ShmReceiver, nbytes: int):
    segment = sender.locate(sender.buffer(nbytes))
    receiver.attach(segment.id, place=segment.place, live=sender.live)
    return segment


def test_what_one_side_writes_the_other_reads(shm: Path) -> None:
    receiver = ShmReceiver()
    with ShmSender(directory=str(shm)) as sender:
        segment = attached(sender, receiver, 5000)
        view = receiver.view(segment.id, nbytes=5000)
        segment.bytes[:5000].random_(0, 256)
        assert view.equal(segment.bytes[:5000])
        assert view.data_ptr() != segment.bytes.data_ptr()


def test_a_segment_never_has_a_name(shm: Path) -> None:
    with ShmSender(directory=str(shm)) as sender:
        segment = attached(sender, ShmReceiver(), 4096)
        assert list(shm.iterdir()) == []
        assert os.fstat(segment.fd).st_nlink == 0


def test_memory_is_freed_with_its_last_user(shm: Path) -> None:
    def used() -> int:
        return sum(
            mapping.endswith("(deleted)") and str(shm) in mapping
            for mapping in Path("/proc/self/maps").read_text().splitlines()
        )

    receiver = ShmReceiver()
    with ShmSender(directory=str(shm)) as sender:
        attached(sender, receiver, 4096)
        assert used() == 2
    assert used() == 1
    receiver.close()
    assert used() == 0


def test_slots_take_turns_are_reused_and_grow_when_they_must(shm: Path) -> None:
    with ShmSender(slots=2, directory=str(shm)) as sender:
        first = [sender.buffer(4096).data_ptr() for _ in range(4)]
        assert first[0] == first[2] != first[1] == first[3]
        before = sender.live
        assert sender.buffer(100).data_ptr() == first[0]
        assert sender.live == before
        assert sender.buffer(8192).numel() == 8192
        assert len(set(sender.live) - set(before)) == 1


def test_memory_that_is_not_the_senders_cannot_be_sent(shm: Path) -> None:
    with ShmSender(directory=str(shm)) as sender, ShmSender(directory=str(shm)) as other:
        sender.buffer(64)
        with pytest.raises(ValueError, match="not shared memory of this sender"):
            sender.locate(other.buffer(64))
        with pytest.raises(ValueError, match="not shared memory of this sender"):
            sender.locate(sender.buffer(128)[64:])


def test_segments_that_are_no_longer_live_are_dropped(shm: Path) -> None:
    receiver = ShmReceiver()
    with ShmSender(slots=1, directory=str(shm)) as sender:
        old = attached(sender, receiver, 4096)
        new = attached(sender, receiver, 8192)
        assert receiver.attached == (new.id,)
        with pytest.raises(TransportError, match="not attached"):
            receiver.view(old.id, nbytes=1)


def test_a_view_outlives_the_sender_that_closed(shm: Path) -> None:
    receiver = ShmReceiver()
    with ShmSender(directory=str(shm)) as sender:
        segment = attached(sender, receiver, 4096)
        segment.bytes.fill_(7)
        view = receiver.view(segment.id, nbytes=4096)
    receiver.close()
    assert int(view.sum()) == 7 * 4096


@pytest.mark.parametrize("nbytes", [0, -1, 4097, 2**70])
def test_a_size_beyond_the_mapping_is_refused(shm: Path, nbytes: int) -> None:
    receiver = ShmReceiver()
    with ShmSender(directory=str(shm)) as sender:
        segment = attached(sender, receiver, 4096)
        with pytest.raises(TransportError, match="1 to 4096 bytes"):
            receiver.view(segment.id, nbytes=nbytes)


def test_ids_that_are_no_segments_ids_are_refused(shm: Path) -> None:
    many = [secrets.token_hex(16) for _ in range(17)]
    with ShmSender(directory=str(shm)) as sender:
        place = sender.locate(sender.buffer(64)).place
    for live in (["x"], many):
        with pytest.raises(TransportError, match="bad segment ids"):
            ShmReceiver().attach(many[0], place=place, live=live)


@pytest.mark.parametrize("change", [{"pid": 2**22 + 1}, {"pid": -1}, {"fd": 10**6}, {"fd": -1}])
def test_a_place_that_does_not_exist_says_what_the_processes_must_share(
    shm: Path, change: dict[str, int]
) -> None:
    with ShmSender(directory=str(shm)) as sender:
        place = replace(sender.locate(sender.buffer(64)).place, **change)
        with pytest.raises(TransportError, match="one user on one host, in one PID namespace"):
            ShmReceiver().attach("0" * 32, place=place, live=[])


@pytest.mark.parametrize("change", [{"inode": 1}, {"device": 1}, {"nbytes": 2**40}, {"nbytes": 64}])
def test_a_place_that_holds_something_else_is_not_mapped(shm: Path, change: dict[str, int]) -> None:
    with ShmSender(directory=str(shm)) as sender:
        place = replace(sender.locate(sender.buffer(64)).place, **change)
        with pytest.raises(TransportError, match="is not the sender's segment"):
            ShmReceiver().attach("0" * 32, place=place, live=[])


def test_a_file_that_is_not_allocated_is_not_mapped(shm: Path) -> None:
    with (shm / "sparse").open("w+b") as file:
        file.truncate(4096)
        found = os.fstat(file.fileno())
        place = SegmentPlace(os.getpid(), file.fileno(), found.st_dev, found.st_ino, 4096)
        with pytest.raises(TransportError, match="is not the sender's segment"):
            ShmReceiver().attach("0" * 32, place=place, live=[])
    (shm / "sparse").unlink()


def test_a_pipe_is_neither_mapped_nor_waited_for(shm: Path) -> None:
    reading, writing = os.pipe()
    found = os.fstat(reading)
    place = SegmentPlace(os.getpid(), reading, found.st_dev, found.st_ino, 0)
    try:
        with pytest.raises(TransportError, match="is not the sender's segment"):
            ShmReceiver().attach("0" * 32, place=place, live=[])
    finally:
        os.close(reading)
        os.close(writing)


def test_too_little_shared_memory_is_an_error_with_numbers_and_a_remedy(shm: Path) -> None:
    room = os.statvfs(shm)
    total = room.f_blocks * room.f_frsize
    with ShmSender(directory=str(shm)) as sender, pytest.raises(SharedMemoryExhausted) as caught:
        sender.buffer(total + 4096)
    assert caught.value.fields["needed_bytes"] == total + 4096
    assert caught.value.fields["free_bytes"] <= total
    assert caught.value.fields["path"] == str(shm)
    assert "sync.bucket_mib" in str(caught.value)
    assert "--shm-size" in str(caught.value)


def test_room_that_vanishes_after_it_was_checked_is_the_same_error(
    shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    open_before = len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(SharedMemoryExhausted, match="too little shared memory"):
        create_segment(4096, directory=str(shm))
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before


@pytest.mark.parametrize("slots", [0, 17])
def test_the_number_of_slots_is_bounded(slots: int) -> None:
    with pytest.raises(ValueError, match="slots="):
        ShmSender(slots=slots)
