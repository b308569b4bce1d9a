"""A terminal of 80 columns for tests: a program runs in it as it does for a person, and what it writes is kept."""

import fcntl
import os
import pty
import re
import struct
import termios

from warm_programs import Program


def in_terminal(*arguments, columns=80, **options):
    """Run a program whose standard error is a terminal; return its exit code, standard output and what was shown.

    ``options`` are those of ``Program``: without ``code`` it is a command of bayesdp.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm"}
    environment.pop("COLUMNS", None)
    with Program(*arguments, stderr=theirs, env=environment, **options) as running:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # the program has ended
            pass
    os.close(ours)
    return running.returncode, *running.printed, shown.decode()


def rows(shown):
    """Return the rows as they were written, without the sequences that move the cursor and set colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    return [row for row in re.split(r"[\r\n]+", plain) if row.strip()]
