"""A ledger in figures, as text and as a table in a notebook."""

import html
import re

import numpy as np
import pytest

from bayesdp import Ledger
from bayesdp.report.summary import summary, words


def cells(ledger):
    """Names and values of the table that a notebook shows."""
    lines = re.findall(r"<tr><th>(.*?)</th><td>(.*?)</td></tr>", ledger._repr_html_())
    return [(html.unescape(name), html.unescape(value)) for name, value in lines]


def test_a_notebook_shows_what_the_command_prints():
    ledger = Ledger(audit_used_for="<b>a look</b>")
    for noise in (2.0, 3.0):
        ledger.step(noise_std=noise, sample_rate=0.1, clip=1.0, audit=np.linspace(0.1, 2.0, 50))
    first, *others = words(summary(ledger)).splitlines()
    shown = cells(ledger)
    assert first == ": ".join(shown[0])
    assert others == [f"  {name}: {value}" if name else f"  {value}" for name, value in shown[1:]]
    assert ("steps 1 to 1", "noise 2, clip 1, sampling rate 0.1") in shown
    assert "<b>" not in ledger._repr_html_()


def test_a_notebook_shows_nothing_of_batches():
    ledger, other = Ledger(), Ledger()
    ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, batch=[0.5, 3.0])
    other.step(noise_std=2.0, sample_rate=0.1, clip=1.0)
    assert cells(ledger)[1:] == cells(other)[1:]


def test_an_empty_ledger_shows_too():
    shown = dict(cells(Ledger()))
    assert shown["for everyone"].startswith("epsilon = 0 at delta = 1e-05")
    assert shown["no audit records"] == "the worst case is all that can be claimed"


@pytest.mark.parametrize(("caveats", "said"), [([], "proved if the number of steps"), (["low-precision"], "estimated")])
def test_a_figure_for_everyone_comes_with_its_kind(caveats, said):
    """In words and in JSON, here and among the claims."""
    ledger = Ledger()
    ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, caveats=caveats)
    claim = ledger.claims().everyone
    assert f", {said}" in dict(cells(ledger))["for everyone"]
    for values in (summary(ledger), ledger.claims().to_dict()):
        assert (values["worst_case"]["kind"], values["worst_case"]["condition"]) == (claim.kind, claim.condition)
