"""The list of commands. Errors become one line on stderr and exit code 2."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from bayesdp.cli.ledger_commands import claims, compose, report, show, verify
from bayesdp.cli.noise_commands import account, calibrate, epsilon
from bayesdp.cli.training_commands import demo, reproduce, train
from bayesdp.version import __version__

app = typer.Typer(
    name="bayesdp",
    help="How private a model is for typical people, not only in the worst case.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (epsilon, calibrate, account, show, claims, verify, compose, train, report, demo, reproduce):
    app.command()(command)


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


_ParserError: Any = typer.BadParameter.__mro__[2]  # ClickException, which typer does not export


def main() -> None:
    """Run the command line in ``sys.argv`` and exit: 0 on success, 2 for an error, 130 when interrupted.

    Bad input, a missing library and a file that cannot be written end in one line on stderr. Anything else is a bug
    and keeps its traceback.
    """
    if len(sys.argv) == 1:
        sys.argv.append("--help")
    try:
        code = typer.main.get_command(app).main(standalone_mode=False)
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
