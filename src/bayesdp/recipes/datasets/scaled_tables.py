"""Abalone and Adult as numbers: each column is shifted and scaled by public constants, never by statistics of the rows.

The mean or standard deviation of the training rows would be a release of its own, without noise. The constants below
are round figures near those published with the data sets; results do not depend on their digits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bayesdp.recipes.datasets.dataset import Rows
from bayesdp.validation import FloatArray, refuse

Lines = Sequence[Sequence[str]]

ABALONE = ("sex", "length", "diameter", "height", "whole", "meat", "viscera", "shell", "meat share", "shell share")
_CENTRES = np.array([1.0, 0.52, 0.41, 0.14, 0.83, 0.36, 0.18, 0.24, 0.43, 0.29])
_SCALES = np.array([0.8, 0.12, 0.1, 0.04, 0.49, 0.22, 0.11, 0.14, 0.05, 0.04])
_TRAINING_SHARE = 0.8

ADULT = (
    *("age", "distance from age 45", "younger than 25", "schooling", "schooling if married", "hours"),
    *("small gain", "large gain", "loss", "loss of the well paid", "married"),
    *(
        "manager or professional",
        "other office work",
        "unskilled work",
        "small business or state",
        "well paid employer",
    ),
)
"""The columns of Adult. Sex, race and origin are not used: accuracy is the same without them."""
_COLUMNS = (
    *("age", "workclass", "weight", "education", "schooling", "marital", "work"),
    *("relation", "race", "sex", "gain", "loss", "hours", "country"),
)
_MARRIED = {"Married-civ-spouse", "Married-AF-spouse"}
_PROFESSIONAL = {"Exec-managerial", "Prof-specialty"}
_OFFICE = {"Tech-support", "Sales", "Protective-serv", "Adm-clerical"}
_UNSKILLED = {"Other-service", "Farming-fishing", "Handlers-cleaners", "Priv-house-serv"}
_SMALL_OR_STATE = {"Self-emp-not-inc", "State-gov"}
_WELL_PAID = {"Federal-gov", "Self-emp-inc"}


@np.errstate(all="ignore")  # a warning about one row would give it away; what is not finite then contributes nothing
def abalone(lines: Lines) -> tuple[Rows, Rows]:
    """Return features [n, 10] and the class of each abalone: 1 if it has more than nine rings.

    The first four fifths of the lines are for training, as in the paper, the others for the audit. Raises
    InvalidInputError for a sex other than I, F or M, and where a number is missing or not finite.
    """
    for line in lines:
        if line[0] not in ("I", "F", "M"):
            raise refuse("sex", line[0], "I, F or M")
    sex = np.array([float("IFM".index(line[0])) for line in lines])
    measured = _numbers("abalone", [line[1:8] for line in lines])
    rings = _numbers("abalone", [line[8:9] for line in lines])[:, 0]
    whole = np.maximum(measured[:, 3], 0.01)
    shares = measured[:, [4, 6]] / whole[:, None]  # of the weight: meat, and shell
    x = (np.c_[sex, measured, shares] - _CENTRES) / _SCALES
    y = (rings > 9).astype(np.int64)
    training = int(_TRAINING_SHARE * len(y))
    return Rows(x[:training], y[:training]), Rows(x[training:], y[training:])


def adult(training: Lines, test: Lines) -> tuple[Rows, Rows]:
    """Return features [n, 16] and the class of each person: 1 if the income is above 50,000.

    A row with a missing value is left out, whatever the other rows are. Raises InvalidInputError where a column of
    numbers has something else.
    """
    return _adult(training), _adult(test)


@np.errstate(all="ignore")  # as above
def _adult(lines: Lines) -> Rows:
    whole = [line for line in lines if "?" not in line]
    columns = {name: [line[place] for line in whole] for place, name in enumerate(_COLUMNS)}
    number = dict(zip(_COLUMNS, _numbers("adult", [_only_numbers(line) for line in whole]).T, strict=True))
    age, gain, loss = number["age"], number["gain"], number["loss"]
    schooling = (number["schooling"] - 10) / 2.5

    def among(name: str, kinds: set[str]) -> FloatArray:
        return np.array([float(value in kinds) for value in columns[name]])

    married = among("marital", _MARRIED)
    x = np.stack(
        [
            (age - 40) / 13,
            np.minimum(((age - 45) / 15) ** 2, 2) - 1,
            2.0 * (age < 25),
            schooling,
            married * schooling,
            np.clip((number["hours"] - 40) / 12, -2, 2),
            2.0 * ((gain > 0) & (gain < 5000)),
            4.0 * (gain >= 5000),
            2.0 * (loss > 0),
            4.0 * (((loss > 1800) & (loss < 2000)) | (loss > 2300)),
            2 * married - 1,
            2 * among("work", _PROFESSIONAL) - 1,
            2 * among("work", _OFFICE),
            2 * among("work", _UNSKILLED),
            2 * among("workclass", _SMALL_OR_STATE),
            2 * among("workclass", _WELL_PAID),
        ],
        axis=1,
    )
    y = np.array([line[14].startswith(">") for line in whole], np.int64)
    return Rows(x, y)


def _only_numbers(line: Sequence[str]) -> list[str]:
    wanted = {"age", "schooling", "gain", "loss", "hours"}
    return [value if name in wanted else "0" for name, value in zip(_COLUMNS, line, strict=False)]


def _numbers(name: str, values: Sequence[Sequence[str]]) -> FloatArray:
    try:
        numbers = np.array([[float(value) for value in line] for line in values], np.float64)
    except ValueError as error:
        raise refuse("data", name, f"numbers where they belong ({error})") from None
    if not np.isfinite(numbers).all():
        raise refuse("data", name, "finite numbers")
    return numbers
