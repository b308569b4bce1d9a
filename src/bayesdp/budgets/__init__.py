"""Enforced budgets: a privacy filter with one account per training record."""

from bayesdp.budgets.record_budgets import RecordBudgets

__all__ = ["RecordBudgets"]
