"""Enforced budgets: a privacy filter with one balance per training record.

record_budgets.py   the filter: budgets in, norms to clip to out, and what they prove
balances.py         what is left of each record's budget
clip_costs.py       what clipping to a norm costs in one step, and which norm an amount pays for
"""

from bayesdp.budgets.record_budgets import RecordBudgets

__all__ = ["RecordBudgets"]
