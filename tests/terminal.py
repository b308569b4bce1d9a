"""A terminal of 80 columns for tests: a program runs in it as it does for a person, and what it writes is kept."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import termios


def in_terminal(command, *, columns=80, **options):
    """Run a program whose standard error is a terminal; return its exit code, standard output and what was shown."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    environment = {**os.environ, "TERM": "xterm", **options.pop("env", {})}
    environment.pop("COLUMNS", None)
    with subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=theirs, env=environment, **options
    ) as running:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 65536):
                shown += part
        except OSError:  # the program has ended
            pass
        out = running.stdout.read().decode()
    os.close(ours)
    return running.returncode, out, shown.decode()


def rows(shown):
    """Return the rows as they were written, without the sequences that move the cursor and set colours."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)
    return [row for row in re.split(r"[\r\n]+", plain) if row.strip()]
