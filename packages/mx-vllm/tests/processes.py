"""Runs a function in a process of its own: vLLM keeps global state, and one engine is enough."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

_TIMEOUT_S = 900

# Forked from a server that has imported vLLM once, and run nothing: an import costs 10 s and more.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["preload"])


class Failed(Exception):
    """The function raised; ``kind`` is the exception's class name."""

    def __init__(self, kind: str, message: str, trace: str) -> None:
        super().__init__(f"{kind}: {message}\n{trace}")
        self.kind = kind
        self.message = message


def run(function: Callable[..., Any], *args: Any) -> Any:
    """``function(*args)`` in another process. Raises Failed; TimeoutError after 15 minutes."""
    here, there = _context.Pipe()
    process = _context.Process(target=_main, args=(there, function, args), daemon=True)
    process.start()
    there.close()
    try:
        if not here.poll(_TIMEOUT_S):
            raise TimeoutError(f"{function.__name__} took more than {_TIMEOUT_S} s")
        try:
            failed, value = here.recv()
        except EOFError:
            process.join(10)
            raise Failed("EOFError", f"the process ended with {process.exitcode}", "") from None
    finally:
        if process.is_alive():
            process.join(10)
        if process.is_alive():
            process.kill()
            process.join()
    if failed:
        raise Failed(*value)
    return value


def _main(pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = (False, function(*args))
    except BaseException as error:
        answer = (True, (type(error).__name__, str(error), traceback.format_exc()))
    pipe.send(answer)
    pipe.close()
