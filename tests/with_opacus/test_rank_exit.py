"""The end of a rank: it waits until PyTorch has let go of the last messages, and for nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from torch import distributed

from bayesdp.opacus.rank_exit import release_before_exit, wait_until_released
from bayesdp.opacus.ranks import Ranks, RanksError

ENDS_AT_THE_WRONG_MOMENT = """
import atexit, ctypes, os, sys, time, weakref

# Runs last, and holds Python's lock: gloo's thread, if it still has a message, then waits for the lock.
atexit.register(lambda: ctypes.PyDLL(None).usleep(50_000))

import torch
from torch import distributed
from bayesdp.opacus.ranks import Ranks

class Lingers:
    def __del__(self):
        time.sleep(0.2)  # gives the lock away while Python shuts down

lingers = Lingers()
distributed.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
kept = distributed.group.WORLD  # as FSDP2 keeps it
core = max(os.sched_getaffinity(0))
for thread in os.listdir("/proc/self/task"):
    os.sched_setaffinity(int(thread), {core})  # so that a message is often still held when its collective returns
sys.setswitchinterval(10)
original, sent = distributed.broadcast, []

def broadcast(message, source):
    original(message, source)
    sent[:] = [weakref.ref(message)]

def last_message():
    ranks, end = Ranks(0, 2, torch.device("cpu")), time.monotonic() + 30
    while not sent or sent[0]() is None:
        ranks.do(lambda: None, "could not")
        assert time.monotonic() < end, "no message was held"

distributed.broadcast = broadcast
atexit.register(last_message)  # runs first
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="threads are made to share a core")
def test_a_rank_that_ends_while_gloo_holds_its_last_message_ends_in_order(tmp_path: Path) -> None:
    """Without the wait, Python shuts down under gloo's thread, and the process is aborted."""
    program = [sys.executable, "-W", "ignore", "-c", ENDS_AT_THE_WRONG_MOMENT, str(tmp_path / "meeting")]
    environment = dict(os.environ) | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    ended = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_the_end_waits_until_the_last_messages_are_released() -> None:
    message = torch.zeros(1)
    held = [message]

    def as_gloo_does() -> None:
        time.sleep(0.2)
        held.clear()

    release_before_exit(message)
    threading.Thread(target=as_gloo_does).start()
    del message
    wait_until_released()
    assert not held


def test_the_end_does_not_wait_for_ever() -> None:
    message = torch.zeros(1)
    release_before_exit(message)
    begin = time.monotonic()
    wait_until_released(0.1)
    assert 0.1 <= time.monotonic() - begin < 2


@pytest.mark.parametrize("failed", ["the connection", "rank 0"])
def test_a_rank_that_leaves_with_an_error_does_not_wait(monkeypatch: pytest.MonkeyPatch, failed: str) -> None:
    """The error keeps the message for as long as somebody has it."""

    def broadcast(message: torch.Tensor, _: int) -> None:
        if failed == "the connection":
            raise RuntimeError("Connection closed by peer")
        message.fill_(2)

    monkeypatch.setattr(distributed, "broadcast", broadcast)
    wait_until_released()
    with pytest.raises(RanksError) as error:
        Ranks(1, 2, torch.device("cpu")).do(lambda: None, "could not record the step")
    begin = time.monotonic()
    wait_until_released()
    assert time.monotonic() - begin < 2
    assert error.value.__traceback__ is not None
