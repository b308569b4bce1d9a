"""Programs that start at once: forked from a Python that has imported PyTorch and the other libraries already.

Each is a process of its own: it can be interrupted, stopped and killed, and it ends as Python does, with a traceback
for what nobody caught, with what was registered for the exit and with the finalizers of its own objects. Only the
seconds are saved that libraries take to be imported, and to be torn down at the end. What is about imports (missing
libraries, an interrupt before there is anything) must start Python itself, or use ``run_without``. The workers of
pytest share one server.
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
import threading
import warnings
from functools import cache

COMMAND = "import sys\nfrom bayesdp.cli import main\nsys.exit(main())"
"""What the installed program ``bayesdp`` does."""

_WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {libraries!r}:
            raise ModuleNotFoundError("No module named " + repr(name), name=name)

for name in [name for name in sys.modules if name.split(".")[0] in ("bayesdp", *{libraries!r})]:
    del sys.modules[name]
sys.meta_path.insert(0, Missing())
"""
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
            "argv": ["bayesdp" if code.endswith(COMMAND) else "-c", *map(str, arguments)],
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


def run_without(*arguments, libraries=(), code=COMMAND, **options):
    """Run a program as where some libraries are not installed: it imports bayesdp itself anew."""
    return run_warm(*arguments, code=_WITHOUT.format(libraries=libraries) + code, **options)


@cache
def _server():
    """Connect to the process that programs are forked from; whoever is first to want one starts it.

    It listens under a name that only this run of the tests knows, and ends when nobody is connected any more.
    """
    name = f"\0bayesdp-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    while True:
        ours = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(ConnectionRefusedError):
            ours.connect(name)
            atexit.register(ours.close)
            return ours
        ours.close()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
            try:
                listening.bind(name)
            except OSError:
                continue  # another worker was quicker
            listening.listen()
            _start(listening.fileno())


def _start(descriptor):
    command = [sys.executable, __file__, str(descriptor)]
    process = subprocess.Popen(command, pass_fds=[descriptor], stdout=subprocess.DEVNULL)

    def stop():
        _server().close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(60)  # another worker may need it still

    atexit.register(stop)


def _wait_for_request(listening):
    """Serve requests; return, in the new process of a program, what it is to run."""
    connections = [listening.accept()[0]]
    while connections:
        for ready in select.select([listening, *connections], [], [])[0]:
            if ready is listening:
                connections.append(listening.accept()[0])
                continue
            text, descriptors, _, _ = socket.recv_fds(ready, _LONGEST, 4)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            if not text:
                connections.remove(ready)
                ready.close()
            elif os.fork() == 0:
                for other in (listening, *connections):
                    other.close()
                return _report_or_become(text, descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
    os._exit(0)


def _report_or_become(text, descriptors):
    """Fork once more: one process reports how the program ends, the other returns what it is to run."""
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


def _run(code):
    """Run the program and end as Python does, but for tearing down the libraries, which takes 0.4 s."""
    namespace = {"__name__": "__main__"}
    number, interrupted = 0, False
    try:
        exec(compile(code, "<string>", "exec"), namespace)
    except SystemExit as ended:
        number = 0 if ended.code is None else ended.code
        if not isinstance(number, int):
            print(number, file=sys.stderr)
            number = 1
    except BaseException as error:
        number, interrupted = 1, isinstance(error, KeyboardInterrupt)
        sys.excepthook(type(error), error, error.__traceback__)
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    namespace.clear()
    gc.collect()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:
        number = 120
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(number & 0xFF)


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
    _run(asked["code"])
