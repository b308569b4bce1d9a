"""The demo: a private classifier of handwritten digits, trained with Opacus, its statement and its report."""

from __future__ import annotations

import http.server
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bayesdp.validation import count, refuse
from bayesdp.whole_file import made_folder, write_text

_MARKER = ".demo"


def run(folder: Path, *, track: Any) -> str:
    """Train, account, write the report; returns what to print.

    Files of an earlier demo in the folder are replaced; one that was interrupted goes on. Those of anything else are
    left alone.
    """
    from bayesdp.recipes.training import FILES, LEDGER, REPORT, train

    marker = folder / _MARKER
    if not marker.exists():
        if any((folder / name).exists() for name in FILES):
            raise refuse("output", str(folder), "a new folder, or that of an earlier demo")
        write_text(made_folder("output", folder) / _MARKER, "Files of `bayesdp demo`; the next demo replaces them.\n")
    if (folder / REPORT).exists():
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
    trained = train("digits", output=folder, resume=(folder / LEDGER).exists(), track=track)
    return f"{trained.statement()}\n\nReport: {(folder / REPORT).resolve()}"


def serve(page: Path, port: int, said: Callable[[str], None]) -> None:
    """Show one page on this machine until it is interrupted; nothing else in its folder can be asked for."""
    count("port", port, minimum=0)
    content = page.read_bytes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = self.path in ("/", f"/{page.name}")
            self.send_response(200 if found else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(content if found else b"")

        def log_message(self, format: str, *args: Any) -> None:
            """Nobody wants to read it."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        said(f"http://127.0.0.1:{server.server_port}/")
        server.serve_forever()
