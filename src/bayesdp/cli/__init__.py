"""The program ``bayesdp``. Each command reads its options, calls one function of the library, and prints the result.

main.py                the list of commands, and errors as one line each
noise_commands.py      epsilon, calibrate, account: commands that need no ledger
ledger_commands.py     show, claims, verify, compose, report
training_commands.py   train, demo, reproduce
options.py             options that several commands share
help_pages.py          how help is laid out
output.py              printing, writing, progress
"""

from bayesdp.cli.main import main

__all__ = ["main"]
