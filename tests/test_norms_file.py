"""Files of norms: every format gives the same numbers, and a bad file is one line and exit code 2."""

import numpy as np
import pytest

from bayesdp.norms_file import read_norms
from command_line import account, run


@pytest.fixture
def norms(tmp_path):
    path = tmp_path / "norms.csv"
    np.savetxt(path, np.random.default_rng(0).uniform(0.1, 2, (6, 12)), delimiter=",")
    return path


def test_all_formats_agree(tmp_path, norms):
    values = np.loadtxt(norms, delimiter=",")
    np.save(tmp_path / "norms.npy", values)
    named = tmp_path / "named.csv"
    named.write_text(",".join(f"record {i}" for i in range(12)) + "\n" + norms.read_text())
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({f"r{i}": column for i, column in enumerate(values.T)})
    pyarrow.parquet.write_table(table, tmp_path / "norms.parquet")
    for path in (norms, named, tmp_path / "norms.npy"):
        assert np.array_equal(read_norms(path), values)
    first, other = (run(*account(path, "--json")).stdout for path in (named, tmp_path / "norms.parquet"))
    assert first
    assert first == other


def test_a_header_of_numbers_as_data_frames_write_it(tmp_path, norms):
    numbered = tmp_path / "numbered.csv"
    numbered.write_text(",".join(map(str, range(12))) + "\n" + norms.read_text())
    assert run(*account(numbered, "--json")).stdout == run(*account(norms, "--json")).stdout


@pytest.mark.parametrize(
    ("content", "quoted"),
    [
        (b"", "at least one row"),
        (b"a,b\n", "at least one row"),
        (b"1,2\n3\n", "row 2=1"),
        (b"1,2\n3,x\n", "row 2='x'"),
        (b"1,2,nan\n", "[0, 2]=nan"),
        (b"1,inf\n", "[0, 1]=inf"),
        (b"1,-2\n", "[0, 1]=-2.0"),
        (b"\xff\xfe\x00", "cannot be read"),
        (b"1 " * 100_000, "cannot be read"),
    ],
)
def test_bad_csv(tmp_path, content, quoted):
    path = tmp_path / "norms.csv"
    path.write_bytes(content)
    result = run(*account(path))
    assert result.returncode == 2
    assert quoted in result.stderr


def test_bad_npy_and_parquet(tmp_path):
    pickled = tmp_path / "pickled.npy"
    np.save(pickled, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 nothing PAR1")
    flat = tmp_path / "flat.npy"
    np.save(flat, np.ones(5))
    for path in (pickled, broken, flat):
        result = run(*account(path))
        assert result.returncode == 2, path
        assert len(result.stderr.strip().splitlines()) == 1
