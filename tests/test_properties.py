"""The paper's propositions as functions."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import properties

epsilons = st.floats(0, 20)
deltas = st.floats(0, 1)


def test_basic_composition_adds():
    assert properties.basic_composition([(0.5, 1e-6)] * 4) == (2.0, pytest.approx(4e-6))
    assert properties.basic_composition([(1.0, 0.7), (2.0, 0.6)]) == (3.0, 1.0)
    assert properties.basic_composition([]) == (0.0, 0.0)


@given(epsilons, deltas, st.integers(1, 50))
def test_group_privacy_is_at_most_what_the_paper_prints(epsilon, delta, size):
    total, group_delta = properties.group_privacy(epsilon, delta, size)
    assert total == size * epsilon
    if delta == 0:
        assert group_delta == 0
        return
    printed = math.log(size) + size * epsilon + math.log(delta)
    assert math.log(delta) - 1e-12 <= math.log(group_delta) <= min(0.0, printed) + 1e-9


def test_group_privacy_is_the_geometric_sum():
    epsilon, delta = 0.3, 1e-6
    expected = sum(delta * math.exp(i * epsilon) for i in range(5))
    assert expected <= properties.group_privacy(epsilon, delta, 5)[1] <= expected * (1 + 1e-11)
    assert properties.group_privacy(0.0, delta, 5)[1] == pytest.approx(5e-6)
    assert properties.group_privacy(500.0, 1e-6, 5)[1] == 1.0


@pytest.mark.parametrize(("epsilon", "success"), [(0, 0.5), (2, 0.8808), (5, 0.9933), (10, 0.99995), (0.95, 0.721)])
def test_attack_success_is_the_papers_table(epsilon, success):
    assert properties.attack_success(epsilon) == pytest.approx(success, abs=5e-5 if epsilon != 0.95 else 5e-4)


@given(st.floats(0, 30))
def test_attack_success_has_an_inverse(epsilon):
    again = properties.epsilon_of_attack_success(min(properties.attack_success(epsilon), 1 - 1e-16))
    assert again == pytest.approx(epsilon, abs=1e-2 if epsilon > 20 else 1e-6)


@given(st.floats(1e-12, 1), st.floats(1e-9, 0.999))
def test_markov_holds_for_a_population_that_attains_it(average, delta):
    share = properties.markov_share(average, delta)
    # the worst population: a share `outside` has delta_x just above delta, the others 0
    outside = min(1.0, average / delta)
    assert share == pytest.approx(max(0.0, 1 - outside), abs=1e-12)


def test_markov_share_of_the_papers_setting():
    assert properties.markov_share(1e-10, 1e-5) == pytest.approx(0.99999)
    assert properties.markov_average_delta(0.99999, 1e-5) == pytest.approx(1e-10)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: properties.group_privacy(-1, 1e-5, 2), "epsilon=-1"),
        (lambda: properties.group_privacy(1, 2, 2), "delta=2"),
        (lambda: properties.group_privacy(1, 1e-5, 0), "size=0"),
        (lambda: properties.group_privacy(1, 1e-5, True), "size=True"),
        (lambda: properties.basic_composition([(math.nan, 0)]), "epsilon=nan"),
        (lambda: properties.attack_success(-0.1), "epsilon=-0.1"),
        (lambda: properties.epsilon_of_attack_success(0.4), "success=0.4"),
        (lambda: properties.markov_share(2, 0.1), "average_delta=2"),
        (lambda: properties.markov_share(0.1, 0), "delta=0"),
        (lambda: properties.markov_average_delta(1.0, 0.1), "share=1.0"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
