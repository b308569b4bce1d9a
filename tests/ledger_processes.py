"""Processes of their own for tests of the ledger: real ones, which can be killed, interrupted and limited.

They are forked from a server that has imported bayesdp already, so each starts within milliseconds instead of half a
second. A function that runs in one stands in a module of tests/, and its first argument is a pipe to the test.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

PATIENCE = 30.0  # seconds after which a process counts as hung

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["bayesdp.run_ledger"])


@dataclass(frozen=True)
class Failure:
    """The last message of a process that ended with an exception."""

    summary: str
    details: str


class Running:
    """A process that has been started, and the pipe on which it is heard."""

    def __init__(self, function: Callable[..., None], *arguments: object) -> None:
        self.pipe, other_end = _SERVER.Pipe()
        self._process = _SERVER.Process(target=_run, args=(other_end, function, arguments))
        self._process.start()
        other_end.close()

    def hear(self) -> Any:
        """Return its next message; raise EOFError if it has ended, TimeoutError if it hangs."""
        if not self.pipe.poll(PATIENCE):
            raise TimeoutError
        return self.pipe.recv()

    def rest(self) -> list[Any]:
        """Return all messages until it ends."""
        messages: list[Any] = []
        try:
            while True:
                messages.append(self.hear())
        except (EOFError, ConnectionResetError):
            return messages

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended by itself."""
        assert self._process.pid is not None
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, number)

    def wait(self) -> int | None:
        """Wait until it ends and return its exit code: below 0 for a signal, None if it hangs."""
        self._process.join(PATIENCE)
        return self._process.exitcode

    def stop(self) -> None:
        """Kill it if it still runs."""
        self._process.kill()
        self._process.join()
        self.pipe.close()


@contextmanager
def process(function: Callable[..., None], *arguments: object) -> Iterator[Running]:
    """Run ``function(pipe, *arguments)`` in a process of its own; it is killed at the end if it still runs."""
    running = Running(function, *arguments)
    try:
        yield running
    finally:
        running.stop()


def child(function: Callable[..., None], *arguments: object) -> list[Any]:
    """Run ``function(pipe, *arguments)`` in a process of its own to its end, which must be a good one.

    Return what it sent.
    """
    with process(function, *arguments) as running:
        messages, code = running.rest(), running.wait()
    for message in messages:
        assert not isinstance(message, Failure), message.details
    assert code == 0, f"ended with code {code}"
    return messages


def _run(pipe: Connection, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    warnings.simplefilter("error")
    try:
        function(pipe, *arguments)
    except BaseException as error:
        pipe.send(Failure(f"{type(error).__name__}: {error}", traceback.format_exc()))
        sys.exit(1)
