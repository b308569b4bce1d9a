"""The grid of squared exposures: placing a sample loses nothing."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bayesdp.paper.square_grid import Grid, anchor


@given(st.lists(st.floats(-20, 20).map(lambda x: 10.0**x), min_size=1, max_size=50))
def test_the_grid_gives_samples_back(values):
    u = np.sort(values)
    grid = Grid(anchor(float(u.max())))
    assert (np.diff(grid.values) > 0).all()
    position, fraction = grid.place(u)
    placed = grid.values[position] + fraction * (grid.values[position + 1] - grid.values[position])
    np.testing.assert_allclose(placed, u, rtol=1e-14)
    assert ((fraction >= 0) & (fraction < 1)).all()
    assert position.max() <= len(grid.values) - 4
