"""The command ``bayesdp``. Each command reads its options, calls one function of the library, and prints.

main.py         the commands, and what becomes of errors
accounting.py   epsilon, calibrate, account
ledgers.py      show, claims, verify, compose, report
training.py     train, demo, reproduce
options.py      options that several commands share
output.py       printing, writing, progress
"""

from bayesdp.cli.main import main

__all__ = ["main"]
