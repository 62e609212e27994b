"""A channel for control messages over a ``multiprocessing.Pipe``: bytes, never pickle."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing.connection import Connection

from mx_sync.remote import SinkServer


def connection_call(connection: Connection, *, timeout_s: float) -> Callable[[bytes], bytes]:
    """A ``call`` over one end of a ``multiprocessing.Pipe``; TimeoutError after ``timeout_s``."""

    def call(message: bytes) -> bytes:
        connection.send_bytes(message)
        if not connection.poll(timeout_s):
            raise TimeoutError(f"no answer within {timeout_s} s")
        return connection.recv_bytes()

    return call


def serve_connection(connection: Connection, server: SinkServer) -> None:
    """Answer the other end until it closes, then close ``server`` (an open sync is aborted)."""
    try:
        while True:
            connection.send_bytes(server.handle(connection.recv_bytes()))
    except (EOFError, ConnectionError):
        # The peer is gone: the ordinary end of a channel. What was open is aborted below.
        return
    finally:
        server.close()
