"""Locales for fuzzed commands: built for the occasion where the machine has no others, and counted as they take effect.

Most machines have C and POSIX only, where asking for another locale changes nothing. One with decimal commas, one with
a Turkish i and one with Arabic digits are built with ``localedef`` if that is there, and found through ``LOCPATH``.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WANTED = {"de_DE.UTF-8": "de_DE", "tr_TR.UTF-8": "tr_TR", "ar_EG.UTF-8": "ar_EG", "C.UTF-8": "C"}
"""What each locale is built from."""
EFFECTIVE: Counter[str] = Counter()
"""How many commands have run in each locale."""


@contextmanager
def installed(folder: Path) -> Iterator[list[str]]:
    """Build the locales in ``folder`` and let this process find them there; yield the names of those that it can use.

    Without ``localedef``, or its sources, there are none, and the environment is left as it is.
    """
    built = [name for name, source in WANTED.items() if _built(folder, name, source)]
    before = os.environ.get("LOCPATH")
    if built:
        os.environ["LOCPATH"] = str(folder)
    try:
        yield built
    finally:
        if before is not None:
            os.environ["LOCPATH"] = before
        elif built:
            del os.environ["LOCPATH"]


def _built(folder: Path, name: str, source: str) -> bool:
    program = shutil.which("localedef")
    if program is None:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    command = [program, "--no-archive", "-i", source, "-f", "UTF-8", str(folder / name)]
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0
