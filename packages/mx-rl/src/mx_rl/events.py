"""TensorBoard events without a deep-learning framework in between."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class EventWriter:
    """Every number of a step's record becomes a scalar with the step as its x value."""

    def __init__(self, directory: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer: Any = EventFileWriter(str(directory))

    def write(self, record: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=key, simple_value=float(value))
            for key, value in record.items()
            if isinstance(value, int | float) and key != "step"
        ]
        self._writer.add_event(
            Event(wall_time=time.time(), step=int(record["step"]), summary=Summary(value=values))
        )
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()
