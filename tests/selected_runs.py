"""Runs of a ledger that declares a selection, marked as the chosen one or not."""

import numpy as np

from bayesdp import Ledger, Plan
from bayesdp.guarantees.selection import Selection

SETTINGS = {"noise_std": 100.0, "sample_rate": 1.0, "clip": 1.0}
STEPS = 20
SELECTION = Selection(mean=5)


def recorded(selection=SELECTION, path=None, steps=STEPS, marked=True, **changed):
    plan = Plan(steps=STEPS, **SETTINGS)
    declared = {"plan": plan, "selection": selection, "training_records": 30_000, "data": "people"}
    ledger = Ledger(**declared) if path is None else Ledger.create(path, **declared)
    rng = np.random.default_rng(0)
    people = rng.lognormal(-2, 0.5, 600)
    for _ in range(steps):
        ledger.step(**SETTINGS | changed, audit=people)
    if marked and selection is not None:
        ledger.mark_chosen()
    return ledger
