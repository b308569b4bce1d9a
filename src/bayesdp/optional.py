"""Libraries that only some parts need: what is missing is named, with the extra that installs it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class MissingLibraryError(ImportError):
    """A library that is not installed; the message names it, what needs it, and the extra to install."""


@contextmanager
def needs(extra: str, what: str) -> Generator[None]:
    """Raise MissingLibraryError where an import inside fails: ``what`` needs ``pip install 'bayesdp[extra]'``.

    Errors of bayesdp's own modules pass as they are: those would be ours.
    """
    try:
        yield
    except MissingLibraryError:
        raise
    except ImportError as error:
        library = (error.name or str(error)).split(".")[0]
        if library == "bayesdp":
            raise
        message = f"{library}=missing: {what} needs pip install 'bayesdp[{extra}]'."
        raise MissingLibraryError(message, name=library) from error
