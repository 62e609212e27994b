"""How buckets move: ``inprocess`` (no move at all) and ``shm`` (between processes of a host)."""

from mx_sync.transports.inprocess import LocalSender
from mx_sync.transports.shm import ShmReceiver, ShmSender

__all__ = ["LocalSender", "ShmReceiver", "ShmSender"]
