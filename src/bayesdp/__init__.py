"""bayesdp: how private a model is for typical people, not only in the worst case.

Names are imported when first used, so that ``bayesdp --help`` starts at once. No framework is imported here.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from bayesdp.version import __version__

if TYPE_CHECKING:
    from bayesdp import estimators, mechanisms, opacus, profiles, properties, recipes
    from bayesdp.accountant import BayesianAccountant, LastLambdaWarning
    from bayesdp.accounting import Account, account
    from bayesdp.budgets import RecordBudgets
    from bayesdp.calibration import Calibration, calibrate
    from bayesdp.claim import Claim
    from bayesdp.gate import Gate
    from bayesdp.ledger import Ledger, LedgerError
    from bayesdp.ledger.composition import compose
    from bayesdp.mechanisms import (
        GaussianLaws,
        Laplace,
        PoissonSubsampled,
        RandomizedResponse,
        SubsampledGaussian,
        UnequalGaussians,
        published_reverse_cost,
    )
    from bayesdp.stopping import StopWhen
    from bayesdp.validation import InvalidInputError
    from bayesdp.worst_case import WorstCase, epsilon, from_dp_event, to_dp_event, worst_case_of

_HOME = {
    "BayesianAccountant": "accountant",
    "Claim": "claim",
    "Gate": "gate",
    "GaussianLaws": "mechanisms",
    "InvalidInputError": "validation",
    "Laplace": "mechanisms",
    "LastLambdaWarning": "accountant",
    "Ledger": "ledger",
    "LedgerError": "ledger",
    "PoissonSubsampled": "mechanisms",
    "RandomizedResponse": "mechanisms",
    "RecordBudgets": "budgets",
    "StopWhen": "stopping",
    "SubsampledGaussian": "mechanisms",
    "UnequalGaussians": "mechanisms",
    "WorstCase": "worst_case",
    "Account": "accounting",
    "Calibration": "calibration",
    "account": "accounting",
    "calibrate": "calibration",
    "compose": "ledger.composition",
    "epsilon": "worst_case",
    "from_dp_event": "worst_case",
    "published_reverse_cost": "mechanisms",
    "to_dp_event": "worst_case",
    "worst_case_of": "worst_case",
}
_MODULES = ("estimators", "mechanisms", "opacus", "profiles", "properties", "recipes")

__all__ = [
    "Account",
    "BayesianAccountant",
    "Calibration",
    "Claim",
    "Gate",
    "GaussianLaws",
    "InvalidInputError",
    "Laplace",
    "LastLambdaWarning",
    "Ledger",
    "LedgerError",
    "PoissonSubsampled",
    "RandomizedResponse",
    "RecordBudgets",
    "StopWhen",
    "SubsampledGaussian",
    "UnequalGaussians",
    "WorstCase",
    "__version__",
    "account",
    "calibrate",
    "compose",
    "epsilon",
    "estimators",
    "from_dp_event",
    "mechanisms",
    "opacus",
    "profiles",
    "properties",
    "published_reverse_cost",
    "recipes",
    "to_dp_event",
    "worst_case_of",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"bayesdp.{name}")
    if name in _HOME:
        value = getattr(importlib.import_module(f"bayesdp.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'bayesdp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
