"""What the fuzzer and the faults under load must show is shown by files in results/: nothing small, nothing found.

A file that is not there shows nothing, and is not judged here.
"""

import json
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "results"
PARTS = ("long", "kills", "disk", "clock", "memory")


def kept(name):
    path = RESULTS / f"{name}.json"
    if not path.is_file():
        pytest.skip(f"{path.name} is not there")
    return json.loads(path.read_text())


def test_a_million_fuzzed_calls_found_nothing():
    result = kept("fuzz")
    assert result["cases"] >= 10**6
    assert sum(sum(outcomes.values()) for outcomes in result["by_kind"].values()) == result["cases"]
    assert result["findings"] == []


def test_a_million_steps_and_five_hundred_kills_lost_no_step():
    result = kept("faults_under_load")
    assert result["settings"]["steps"] >= 10**6
    assert result["long"]["found"]["points"][-1]["steps"] >= 10**6
    assert result["kills"]["found"]["kills"] >= 500
    assert result["settings"]["writers"] >= 8
    assert {part: result[part]["failures"] for part in PARTS} == {part: [] for part in PARTS}
