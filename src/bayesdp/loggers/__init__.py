"""Curves of epsilon where people look: TensorBoard, MLflow, Weights & Biases.

    with bayesdp.opacus.watch(..., log=writer) as watched:      # while training goes on
        ...
    bayesdp.loggers.log_run(ledger, writer)                     # or afterwards, from the ledger

dashboards.py  the three places that figures, words and files go to
curves.py      what is written there: during a run, and after it
"""

from __future__ import annotations

from bayesdp.loggers.curves import LiveCurves, log_run
from bayesdp.loggers.dashboards import Dashboard, dashboard

__all__ = ["Dashboard", "LiveCurves", "dashboard", "log_run"]
