"""A claim in words, Markdown, HTML and JSON."""

import json
import math
import re
from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bayesdp import Claim
from bayesdp.claims.statement import statement, to_html, to_markdown
from bayesdp.formatting import round_up

EVERYONE = Claim(epsilon=2.3456, delta=1e-5, audience="everyone", direction="both", kind="proved", method="PLD")
SHARE = Claim(
    epsilon=0.51234,
    delta=1e-5,
    audience="share",
    share=0.99,
    samples=600,
    gamma=0.01,
    direction="record out",
    kind="ex-post",
    method="order statistics",
    assumptions=("records were drawn at random",),
    notes=("A note.",),
    worst_case=EVERYONE,
)


def test_the_sentence():
    assert str(EVERYONE) == (
        "For everyone: epsilon = 2.35 at delta = 1e-05 (PLD). Proved: it holds for every data set and every run."
    )
    people = "people like those in the audit set"
    assert str(SHARE).startswith(
        f"For at least 99 % of {people}, with 99 % confidence: epsilon = 0.513 at delta = 1e-05"
    )
    assert "not in the data" in str(SHARE)
    assert "It assumes: records were drawn at random." in str(SHARE)
    assert str(SHARE).endswith(str(EVERYONE))


def test_no_claim_says_why():
    missing = SHARE.without("too few audit records")
    assert "no claim at delta = 1e-05: too few audit records." in str(missing)
    assert "confidence" not in str(missing)
    assert missing.to_dict()["epsilon"] is None
    assert missing.to_dict()["reason"] == "too few audit records"


def test_frozen_and_comparable():
    assert replace(SHARE) == SHARE
    assert len({SHARE, replace(SHARE), EVERYONE}) == 2
    with pytest.raises(FrozenInstanceError):
        SHARE.epsilon = 0.0


def test_together_what_they_rest_on_is_said_once():
    text = statement([EVERYONE, SHARE, replace(SHARE, share=0.5)])
    assert text.count("drawn at random") == 1
    assert text.count("For everyone") == 1
    assert text.splitlines()[0] == "1. For everyone: epsilon = 2.35 at delta = 1e-05 (proved; PLD)."
    assert "- 2, 3: Assumption: records were drawn at random." in text


def test_markdown_for_a_model_card():
    table = SHARE.to_markdown()
    assert "| For at least 99 % of people like those in the audit set | **epsilon = 0.513 at delta = 1e-05** |" in table
    assert "| confidence | 99 % (gamma = 0.01) |" in table
    assert "| For everyone |" in table
    for line in filter(None, table.splitlines()):
        assert len(re.findall(r"(?<!\\)\|", line)) == 3, line


HOSTILE = [
    "<script>alert(1)</script>",
    "a|b",
    "line\nbreak",
    "`c` *x* [l](http://x)",
    "x" * 5000,
    "群組 \u202e",
    "\\",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_text(name):
    claim = replace(SHARE, group=name, notes=(name,))
    html = claim._repr_html_()
    assert "<script" not in html
    assert html.count("<table>") == html.count("</table>") == 2
    for line in filter(None, claim.to_markdown().splitlines()):
        assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == 3
    assert "<script" not in claim.to_markdown()
    assert json.loads(json.dumps(claim.to_dict(), allow_nan=False))["group"] == name


@given(st.floats(1e-12, 0.999))
def test_confidence_is_never_rounded_up(gamma):
    text = str(replace(SHARE, gamma=gamma))
    shown = float(re.search(r"with ([0-9.e-]+) % confidence", text).group(1))
    assert shown <= 100 - 100 * gamma + 1e-13
    assert 100 - shown <= 100 * gamma * 1.2 + 1e-12


def test_group_privacy():
    three = EVERYONE.for_rows(3)
    assert three.epsilon == pytest.approx(3 * 2.3456)
    assert three.delta == pytest.approx(1e-5 * (math.exp(3 * 2.3456) - 1) / (math.exp(2.3456) - 1))
    assert "3 rows" in str(three)
    assert EVERYONE.for_rows(1).epsilon == EVERYONE.epsilon
    with pytest.raises(ValueError, match="audience='share'"):
        SHARE.for_rows(2)
    with pytest.raises(ValueError, match="size=0"):
        EVERYONE.for_rows(0)


def test_several_rows_follow_from_claims_for_everyone_only():
    nothing = replace(EVERYONE, epsilon=math.inf, reason="too little noise")
    assert math.isinf(nothing.for_rows(2).epsilon)
    paper = replace(SHARE, audience="average", kind="model-based", worst_case=nothing)
    assert paper.for_rows(2).epsilon == 2 * SHARE.epsilon
    with pytest.raises(ValueError, match="audience='average'"):
        replace(SHARE, audience="average", kind="proved").for_rows(2)


def test_shares_are_never_rounded_up():
    assert "at least 99.999996 % of" in str(replace(SHARE, share=0.99999996))
    assert "with 99.999999999999 % confidence" in str(replace(SHARE, gamma=1e-14))
    assert round_up(5e-324) == "5e-324"


def test_json_of_an_infinite_epsilon():
    nothing = replace(EVERYONE, epsilon=math.inf, reason="too little noise")
    values = replace(SHARE, worst_case=nothing).to_dict()
    assert values["worst_case"]["epsilon"] is None
    json.dumps(values, allow_nan=False)


def test_private_claims_are_marked_everywhere():
    private = replace(SHARE, private=True)
    for text in (str(private), private.to_markdown(), private._repr_html_(), statement([private])):
        assert "not for release" in text
    assert to_markdown([]) == to_html([]) == ""
