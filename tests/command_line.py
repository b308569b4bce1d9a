"""Ways to run the commands of bayesdp: quickly, inside this process, and as a user does."""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path

from bayesdp.cli import main

BAYESDP = Path(sys.executable).parent / "bayesdp"


def run(*arguments, cwd=None):
    """Run a command in this process, which saves starting Python and importing the libraries each time."""
    words = [str(argument) for argument in arguments]
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    with contextlib.chdir(cwd or "."), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        sys.argv = ["bayesdp", *words]
        try:
            main()
            code = 0
        except SystemExit as ended:
            code = ended.code
        finally:
            sys.argv = before
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def run_program(*arguments, program=(BAYESDP,), **options):
    """Run a command as a user does, in a process of its own."""
    command = [*map(str, program), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **options)


def strict_json(text):
    def no_constants(name):
        raise AssertionError(f"{name} is not JSON")

    return json.loads(text, parse_constant=no_constants)


def account(path, *more):
    """The arguments of ``bayesdp account`` for a file of norms."""
    return ["account", path, "--noise-multiplier", 2, "--clip", 1, "--sample-rate", 0.1, "--delta", 1e-5, *more]


EPSILON = ["epsilon", "--noise-multiplier", 4, "--sample-rate", 0.1, "--steps", 100, "--delta", 1e-5]
CALIBRATE = ["calibrate", "--target-epsilon", 5, "--sample-rate", 0.1, "--steps", 10, "--delta", 1e-5]
