"""The table of costs by norm: never below exact, and no amount pays for more than it is worth."""

import math
from fractions import Fraction

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from bayesdp.budgets.clip_costs import FLOOR, Setting, clip_costs
from budget_runs import exact_cost


@given(st.floats(1e-6, 1e3), st.sampled_from([1.0, 0.5, 0.01]), st.sampled_from([1.0, 3.0, 32.0]))
def test_the_table_is_never_below_exact_and_payable_never_above_the_amount(multiplier, rate, order):
    clip = 0.7
    table = clip_costs(Setting(noise_std=multiplier * clip, sample_rate=rate, clip=clip), (order,))
    for place in (1, 2, 5, 1000, len(table.norms) - 2, len(table.norms) - 1):
        exact = exact_cost(table.norms[place], multiplier * clip, rate, order)
        assert exact <= Fraction(table.costs[0, place])
    assert (np.diff(table.costs[0]) >= 0).all()
    amounts = np.concatenate([table.costs[0, 1:] * factor for factor in (0.999, 1.0, 1.001, 3.0)])
    places = table.payable(0, amounts)
    assert (table.costs[0, places] <= amounts)[places > 0].all()
    above = np.minimum(places.astype(int) + 1, len(table.norms) - 1)
    assert ((table.costs[0, above] >= amounts * (1 - 2.0**-9)) | (above == places)).all()
    inputs = np.array([0.0, 1e-320, 1e-9, clip / 3, np.nextafter(clip / 3, 1), clip, 5.0, math.inf])
    rounded = table.norms[table.places(inputs)]
    assert (rounded >= np.minimum(inputs, clip)).all()
    assert (rounded <= np.maximum(inputs * (1 + 2.0**-9), FLOOR * clip * (1 + 2.0**-9)))[1:].all()
    assert rounded[0] == 0
