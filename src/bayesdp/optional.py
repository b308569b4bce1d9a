"""Optional libraries: an error that names the missing library and the extra that installs it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager


class MissingLibraryError(ImportError):
    """A library that is not installed.

    The message names the library, what needs it, and the extra that installs it; ``name`` is the library.
    """


@contextmanager
def needs(extra: str, what: str) -> Generator[None]:
    """Turn an ImportError inside the block into MissingLibraryError: ``what`` needs ``pip install 'bayesdp[extra]'``.

    A failed import of one of bayesdp's own modules is not caught: that would be a bug of ours, not a missing library.
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
