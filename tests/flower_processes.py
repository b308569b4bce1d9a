"""Real Flower processes on this machine: a SuperLink, SuperNodes, runs of the app in tests/flower_app, and kills."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from bayesdp import Ledger, LedgerError

APP = Path(__file__).parent / "flower_app"
INITIAL = hashlib.sha256(np.zeros(4).tobytes()).hexdigest()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Federation:
    """A SuperLink and SuperNodes, the last ``audit`` of them audit clients; ``folder`` holds all their files."""

    def __init__(self, folder: Path, clients: int, audit: int) -> None:
        self.folder, self.clients, self.audit = folder, clients, audit
        self.port = free_port()
        self.processes: list[subprocess.Popen[bytes]] = []
        self.environment = {
            **os.environ,
            "FLWR_HOME": str(folder / "home"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(p for p in sys.path if p.endswith("src")),
        }

    def __enter__(self) -> Federation:
        (self.folder / "home").mkdir(parents=True)
        (self.folder / "run").mkdir()
        config = (
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self.port}"\ninsecure = true\n'
        )
        (self.folder / "home" / "config.toml").write_text(config)
        place = ("--host", "127.0.0.1", "--port", str(self.port))
        self._start("flower-superlink", "--insecure", "--disable-runtime-dependency-installation", *place)
        self._wait(self._listens, 60, "the SuperLink to listen")
        for number in range(self.clients):
            audit = "true" if number >= self.clients - self.audit else "false"
            node = f"partition-id={number} audit={audit}"
            address = ("--superlink", f"127.0.0.1:{self.port}", "--port", str(free_port()))
            self._start("flower-supernode", "--insecure", *address, "--node-config", node)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self.kill_server()  # started by the SuperLink in a session of its own

    def run(self, **config: object) -> None:
        """Start a run of the app; it goes on after this returns."""
        settings = {"folder": f"'{self.folder / 'run'}'", "clients": self.clients, **config}
        text = " ".join(f"{name}={value}" for name, value in settings.items())
        command = ["flwr", "run", str(APP), "here", "--run-config", text]
        subprocess.run(command, env=self.environment, check=True, capture_output=True, timeout=300)

    def wait_for_steps(self, steps: int, seconds: float) -> None:
        self._wait(lambda: self.steps() >= steps, seconds, f"{steps} steps in the ledger")

    def wait_until_done(self, seconds: float) -> None:
        self._wait((self.folder / "run" / "done").exists, seconds, "the run to end")

    def steps(self) -> int:
        """How many steps the ledger on disk has, by a reader in another process than the server."""
        try:
            return Ledger.open(self.folder / "run" / "run.ledger", write=False).steps
        except LedgerError:  # not there yet
            return 0

    def seen(self) -> tuple[int, int]:
        """The highest number of a round that clients were sent, and how many models other than the first they saw."""
        lines = [
            line.split() for path in (self.folder / "run").glob("seen-*") for line in path.read_text().splitlines()
        ]
        return max((int(number) for number, _ in lines), default=0), len({model for _, model in lines} - {INITIAL})

    def kill_server(self) -> bool:
        """Kill the process of the ServerApp; False if there was none."""
        found = self._servers()
        for process in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return bool(found)

    def wait_for_kill(self, seconds: float) -> None:
        """Kill the process of the ServerApp as soon as there is one."""
        self._wait(self.kill_server, seconds, "a server that could be killed")

    def _start(self, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        with open(self.folder / "log.txt", "ab") as log:
            process = subprocess.Popen(
                [str(Path(sys.executable).parent / program), *arguments],
                env=self.environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.processes.append(process)
        return process

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _state(self) -> str:
        """What a reader needs to see why a wait was in vain."""
        alive = sum(process.poll() is None for process in self.processes)
        log = (self.folder / "log.txt").read_text(errors="replace").splitlines()
        telling = [line for line in log if "ERROR" in line or "WARN" in line or "Traceback" in line or "Error:" in line]
        text = f"{alive} of {len(self.processes)} processes alive, {self.steps()} steps, "
        return text + "\n".join([f"server {'there' if self._servers() else 'gone'}", *telling[-8:], *log[-8:]])

    def _servers(self) -> list[int]:
        return _processes("flwr-serverapp", f"127.0.0.1:{self.port}")

    def _wait(self, condition, seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                raise TimeoutError(f"waited {seconds} seconds for {what}: {self._state()}")
            time.sleep(0.2)


def _processes(program: str, argument: str) -> list[int]:
    """The processes of a program that were started with an argument: those of this federation, by its port."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
                if any(word.endswith(program) for word in words) and argument in words:
                    found.append(int(entry.name))
    return found
