"""Calls on all processors: the results of ``map``, in order, from several threads that do not outlive their use."""

import threading
import time

import pytest
import torch

from bayesdp.progress import ended
from bayesdp.recipes.processors import on_all_processors


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("items", [0, 1, 2, 3, 50])
def test_the_results_are_those_of_map(two_threads, items):
    def slower_at_first(item):
        time.sleep(0.02 if item == 1 else 0)
        return item**2

    assert list(on_all_processors(slower_at_first, range(items))) == [item**2 for item in range(items)]
    assert torch.get_num_threads() == 2


def test_calls_run_at_once_with_one_thread_of_pytorch_each(two_threads):
    together = threading.Barrier(2, timeout=30)  # breaks, and raises, if calls come one after the other

    def call(item):
        if item == 0:
            return torch.get_num_threads()
        together.wait()
        return torch.get_num_threads()

    assert list(on_all_processors(call, range(5))) == [2, 1, 1, 1, 1]


def test_the_first_call_is_alone(two_threads):
    running, most = [], []

    def call(item):
        running.append(item)
        time.sleep(0.05)
        most.append((item, len(running)))
        running.remove(item)

    list(on_all_processors(call, range(4)))
    assert most[0] == (0, 1)


def test_nothing_is_begun_after_an_error(two_threads):
    begun = []

    def call(item):
        begun.append(item)
        if item == 4:
            raise ValueError("bad row")
        return item

    with pytest.raises(ValueError, match="bad row"), ended(on_all_processors(call, range(1000))) as results:
        list(results)
    assert len(begun) <= 8
    assert torch.get_num_threads() == 2
    before = len(begun)
    time.sleep(0.05)
    assert len(begun) == before


def test_nothing_is_begun_after_the_end_of_the_block(two_threads):
    begun = []
    with ended(on_all_processors(begun.append, range(1000))) as results:
        for _ in range(6):
            next(results)
    assert 6 <= len(begun) <= 9
    assert torch.get_num_threads() == 2
