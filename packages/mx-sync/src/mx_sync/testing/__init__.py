"""For tests of adapters: an engine in a dictionary, and the contract that all engines keep."""

from mx_sync.testing.contract import Harness, SinkContract
from mx_sync.testing.engine import MemoryEngine

__all__ = ["Harness", "MemoryEngine", "SinkContract"]
