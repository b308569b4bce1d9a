"""A small run of a benchmark leaves the result of a larger one where it is."""

import json

import pytest
from benchmarks.results import write_result


def size(report):
    return report["kills"], report["steps"]


@pytest.mark.parametrize(("kills", "steps", "written"), [(2, 9, True), (3, 10, True), (1, 100, False), (2, 8, False)])
def test_only_what_tried_at_least_as_much_in_every_way_is_written(tmp_path, capsys, kills, steps, written):
    path = tmp_path / "results" / "storm.json"
    assert write_result({"kills": 2, "steps": 9}, path, size)
    assert write_result({"kills": kills, "steps": steps}, path, size) == written
    expected = {"kills": kills, "steps": steps} if written else {"kills": 2, "steps": 9}
    assert json.loads(path.read_text()) == expected
    assert ("larger run, (2, 9)" in capsys.readouterr().out) != written


def test_elsewhere_anything_is_written(tmp_path):
    path, other = tmp_path / "storm.json", tmp_path / "new" / "small.json"
    write_result({"kills": 2, "steps": 9}, path, size)
    assert write_result({"kills": 0, "steps": 0}, path, size, other)
    assert json.loads(other.read_text()) == {"kills": 0, "steps": 0}
    assert json.loads(path.read_text())["kills"] == 2
