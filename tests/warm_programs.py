"""Programs that start at once: forked from a Python that has imported PyTorch and the other libraries already.

Each is a process of its own: it can be interrupted, stopped and killed, and it ends as Python does, with a traceback
for what nobody caught and with what was registered for the exit. Only the seconds that imports take are saved. What is
about imports (missing libraries, an interrupt before there is anything) must start Python itself.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import warnings
from functools import cache

COMMAND = "import sys\nfrom bayesdp.cli import main\nsys.exit(main())"
"""What the installed program ``bayesdp`` does."""

_PRELOADED = (
    *("torch", "torch._dynamo", "opacus", "sklearn.datasets", "sklearn.linear_model", "sklearn.metrics", "pydantic"),
    *("dp_accounting.pld", "dp_accounting.rdp", "rich.live", "rich.progress", "jinja2", "plotly.offline"),
    *("bayesdp.opacus", "bayesdp.recipes.dp_sgd", "bayesdp.recipes.variational", "bayesdp.recipes.demo"),
    *("bayesdp.recipes.training", "bayesdp.report.page", "bayesdp.cli"),
)
_LONGEST = 1 << 17  # bytes of a request


class Program:
    """A running program: Python ``code`` with arguments, by default a command of bayesdp.

    Standard output and errors go to the given descriptors; what was written to those that are not given is in
    ``printed`` after the end. With ``warn=False`` warnings are ignored, as by ``python -W ignore``.
    """

    def __init__(self, *arguments, code=COMMAND, stdout=None, stderr=None, env=None, cwd=None, warn=True):
        self.returncode, self.printed = None, []
        self._files = [tempfile.TemporaryFile() for given in (stdout, stderr) if given is None]  # noqa: SIM115
        files = iter(self._files)
        outputs = [next(files).fileno() if given is None else given for given in (stdout, stderr)]
        request = {
            "argv": ["bayesdp" if code == COMMAND else "-c", *map(str, arguments)],
            "code": code,
            "cwd": str(cwd or os.getcwd()),
            "environment": dict(os.environ) if env is None else env,
            "warn": warn,
        }
        self._connection, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with open(os.devnull, "rb") as nothing, other_end:
            descriptors = [nothing.fileno(), *outputs, other_end.fileno()]
            socket.send_fds(_server(), [json.dumps(request).encode()], descriptors)
        self.pid = int(self._connection.recv(64))

    def poll(self, timeout=0.0):
        """Return the exit code, below 0 for a signal; None if the program has not ended within the time."""
        if self.returncode is None and select.select([self._connection], [], [], timeout)[0]:
            self.returncode = int(self._connection.recv(64))
            self._connection.close()
            for file in self._files:
                with file:
                    file.seek(0)
                    self.printed.append(file.read().decode())
        return self.returncode

    def wait(self, timeout=120.0):
        """Return the exit code; a program that takes longer is killed, and the test fails."""
        if self.poll(timeout) is None:
            self.kill()
            self.poll(timeout)
            raise TimeoutError(f"the program did not end within {timeout} s")
        return self.returncode

    def send_signal(self, number):
        """Send a signal, unless the program has ended."""
        with contextlib.suppress(ProcessLookupError):
            if self.poll() is None:
                os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.poll() is None:
            self.wait()


def run_warm(*arguments, **options):
    """Run a command of bayesdp in a process of its own to its end; return exit code and output."""
    running = Program(*arguments, **options)
    code, (out, err) = running.wait(), running.printed
    return subprocess.CompletedProcess(arguments, code, out, err)


@cache
def _server():
    """Start the process that programs are forked from, the first time that one is wanted."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process = subprocess.Popen(
        [sys.executable, __file__, str(theirs.fileno())],
        pass_fds=[theirs.fileno()],
        stdout=subprocess.DEVNULL,
    )
    theirs.close()

    def stop():
        ours.close()  # which ends it
        process.wait(60)

    atexit.register(stop)
    return ours


def _wait_for_request(listening):
    """Serve requests; return, in the new process of a program, what it is to run."""
    while True:
        text, descriptors, _, _ = socket.recv_fds(listening, _LONGEST, 4)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0 if not text else os.WNOHANG)[0]:
                pass
        if not text:
            os._exit(0)
        if os.fork() == 0:
            listening.close()
            break
        for descriptor in descriptors:
            os.close(descriptor)
    *streams, answers = descriptors
    with socket.socket(fileno=answers) as reporting:
        program = os.fork()
        if program:  # this process reports how the program ends
            for descriptor in streams:
                os.close(descriptor)
            reporting.send(str(program).encode())
            code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
            with contextlib.suppress(BrokenPipeError):  # nobody listens any more
                reporting.send(str(code).encode())
            os._exit(0)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
        os.close(descriptor)
    return json.loads(text)


def _become(request):
    """Set up this process as Python would have begun it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["cwd"])
    sys.argv = request["argv"]
    sys.stdout, sys.stderr = _stream(1, "strict"), _stream(2, "backslashreplace")
    sys.__stdout__, sys.__stderr__ = sys.stdout, sys.stderr
    if not request["warn"]:
        warnings.simplefilter("ignore")


def _stream(number, errors):
    buffered = io.BufferedWriter(io.FileIO(number, "wb", closefd=False))
    at_once = number == 2 or os.isatty(number)
    return io.TextIOWrapper(buffered, encoding="utf-8", errors=errors, line_buffering=at_once)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for pytest, which then ends this process
    gc.disable()  # collections while it imports would find nothing
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in _PRELOADED:
            importlib.import_module(name)
    del sys.path[0]  # the folder of this file
    gc.collect()
    gc.freeze()  # a program that ends would look at all of this, and copy it
    gc.enable()
    asked = _wait_for_request(socket.socket(fileno=int(sys.argv[1])))
    _become(asked)
    exec(compile(asked["code"], "<string>", "exec"), {"__name__": "__main__"})
