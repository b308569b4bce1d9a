"""The list of commands. Errors become one line on stderr and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from bayesdp.cli.attack_command import attack
from bayesdp.cli.help_pages import WordyCommand, WordyGroup
from bayesdp.cli.ledger_commands import advise, claims, compose, report, show, verify
from bayesdp.cli.noise_commands import account, calibrate, epsilon
from bayesdp.cli.training_commands import demo, reproduce, train
from bayesdp.version import __version__

app = typer.Typer(
    name="bayesdp",
    cls=WordyGroup,
    help="How private a model is for typical people, not only in the worst case.",
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
)
_COMMANDS = {
    epsilon: "The worst-case epsilon of a DP-SGD run: for everyone.",
    calibrate: "The noise that a target epsilon, or a target risk, needs.",
    account: "All claims about a run, from a file of gradient norms.",
    show: "What is in a ledger: steps, noise, rates, exposures.",
    claims: "What may be claimed about a run, from its ledger.",
    advise: "What another clip bound would do for typical people.",
    verify: "Whether a ledger is complete and unchanged.",
    compose: "One ledger of successive runs on the same people.",
    train: "A private model with a recipe, from raw data to the report.",
    report: "The page for the person who decides, from a ledger.",
    demo: "A small private model on digits, with statement and report.",
    reproduce: "The experiments of the paper, beside published values.",
    attack: "Try to break the claims of this software; planted bugs.",
}
for command, summary in _COMMANDS.items():
    app.command(cls=WordyCommand, short_help=summary)(command)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"bayesdp {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """How private a model is for typical people, not only in the worst case."""


@cache
def _program() -> Any:
    """Build the parser of all commands, once in a process: it takes longer than most commands."""
    return typer.main.get_command(app)


_ParserError: Any = typer.BadParameter.__mro__[2]  # ClickException, which typer does not export


def main() -> None:
    """Run the command line in ``sys.argv`` and exit: 0 on success, 2 for an error, 130 when interrupted.

    Bad input, a missing library and a file that cannot be written end in one line on stderr. Anything else is a bug
    and keeps its traceback.
    """
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        code = _program().main(standalone_mode=False)
    except _ParserError as error:
        _fail(_parser_words(error, sys.argv))
    except ValueError as error:
        from bayesdp.validation import InvalidInputError

        if not isinstance(error, InvalidInputError):
            raise
        _fail(str(error))
    except OSError as error:  # a full disk, a folder without permission to write
        from bayesdp.ledger import StorageError

        known = isinstance(error, StorageError)
        _fail(str(error) if known else f"file={error.filename or ''}: {error.strerror or error}")
    except ImportError as error:
        from bayesdp.optional import MissingLibraryError

        if not isinstance(error, MissingLibraryError):
            raise
        _fail(str(error))
    except (typer.Abort, KeyboardInterrupt):
        sys.exit(130)
    else:
        sys.exit(code if isinstance(code, int) else 0)


def _parser_words(error: Any, arguments: Sequence[str]) -> str:
    """Return the parser's complaint in one line, with name=value if a value was given."""
    message = " ".join(error.format_message().split())
    parameter: Any = getattr(error, "param", None)
    for option in getattr(parameter, "opts", ()):
        for given, following in reversed(list(zip(arguments, [*arguments[1:], ""], strict=True))):
            value = following if given == option else given.removeprefix(f"{option}=")
            if given == option or value != given:
                return f"{parameter.name.rstrip('_')}={value}: {message}"
    return message


def _fail(message: str) -> None:
    print(f"bayesdp: {message}", file=sys.stderr)
    sys.exit(2)
