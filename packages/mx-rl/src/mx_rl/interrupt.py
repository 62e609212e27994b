"""Ctrl-C and SIGTERM: the first ends the run with a checkpoint, the second at once."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stop:
    """Call it to learn whether somebody asked to stop; ``signal`` is the number that came."""

    def __init__(self) -> None:
        self.signal: int | None = None

    def __call__(self) -> bool:
        return self.signal is not None


@contextmanager
def stop_on_signals(announce: Callable[[str], None]) -> Iterator[Stop]:
    """While the block runs, signals set the ``Stop``; a second one raises KeyboardInterrupt."""
    stop = Stop()

    def heard(number: int, frame: FrameType | None) -> None:
        if stop.signal is not None:
            raise KeyboardInterrupt
        stop.signal = number
        announce(
            f"{signal.Signals(number).name}: ending with a checkpoint; once more to end at once, "
            "without"
        )

    before = {number: signal.signal(number, heard) for number in SIGNALS}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
