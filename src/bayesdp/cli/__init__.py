"""The command ``bayesdp``. Each command reads its options, calls one function of the library, and prints.

main.py                all commands, and what becomes of errors
noise_commands.py      epsilon, calibrate, account: commands that need no ledger
ledger_commands.py     show, claims, verify, compose, report
training_commands.py   train, demo, reproduce
options.py             options that several commands share
output.py              printing, writing, progress
"""

from bayesdp.cli.main import main

__all__ = ["main"]
