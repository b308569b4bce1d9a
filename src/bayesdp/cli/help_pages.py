"""Help pages in words: no types of Python, and no option broken at a hyphen at the end of a line."""

from __future__ import annotations

import re
from typing import Any

import typer.core

_UNBROKEN = "\N{NON-BREAKING HYPHEN}"


def _laid_out(command: Any, page: Any) -> str:
    """Return the page that ``page()`` lays out, with hyphens at which no line is broken."""
    parts = [command, *command.params, *getattr(command, "commands", {}).values()]
    texts = [(part, name, text) for part in parts for name in ("help", "short_help") if (text := _text(part, name))]
    try:
        for part, name, text in texts:
            setattr(part, name, text.replace("-", _UNBROKEN))
        return page().replace(_UNBROKEN, "-")
    finally:
        for part, name, text in texts:
            setattr(part, name, text)


def _no_type(ctx: Any) -> None:
    """Stand in for the method that gives an argument's type in words of Python."""


def _text(part: Any, name: str) -> str | None:
    return getattr(part, name, None)


class WordyCommand(typer.core.TyperCommand):
    """A command whose arguments are shown by their names alone: ``LEDGER``, not ``{ledger} <path>``."""

    def get_help(self, ctx: Any) -> str:
        """Return the help page."""
        for parameter in self.params:
            if isinstance(parameter, typer.core.TyperArgument):
                vars(parameter)["display_type_rich"] = _no_type  # typer shows it since 0.27
        return _laid_out(self, lambda: super(WordyCommand, self).get_help(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the parts of the line that begins with "Usage:"."""
        return [re.sub("[{}]", "", piece) for piece in super().collect_usage_pieces(ctx)]


class WordyGroup(typer.core.TyperGroup):
    """The program, with the same help pages."""

    def get_help(self, ctx: Any) -> str:
        """Return the help page."""
        return _laid_out(self, lambda: super(WordyGroup, self).get_help(ctx))
