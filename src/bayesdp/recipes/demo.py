"""``bayesdp demo``: a private classifier of handwritten digits, trained with Opacus, its statement and its report."""

from __future__ import annotations

import http.server
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bayesdp.validation import count, refuse
from bayesdp.whole_file import made_folder, write_text

if TYPE_CHECKING:
    from bayesdp.recipes.trained import Trained

_MARKER = ".demo"


def run(folder: Path, *, track: Any) -> Trained:
    """Train the recipe ``digits`` into ``folder``, write its report, and return the model with its claims.

    A finished demo in the folder is replaced, and an interrupted one goes on. Raises InvalidInputError if the folder
    has files of anything else: they are left alone. Raises LedgerError if another process is training in it.
    """
    from bayesdp.ledger import check_not_written
    from bayesdp.recipes.training import FILES, LEDGER, REPORT, train

    check_not_written(folder / LEDGER)

    marker = folder / _MARKER
    if not marker.exists():
        if any((folder / name).exists() for name in FILES):
            raise refuse("output", str(folder), "a new folder, or that of an earlier demo")
        write_text(made_folder("output", folder) / _MARKER, "Files of `bayesdp demo`; the next demo replaces them.\n")
    if (folder / REPORT).exists():
        for name in FILES:
            (folder / name).unlink(missing_ok=True)
    return train("digits", output=folder, resume=(folder / LEDGER).exists(), track=track)


def serve(page: Path, port: int, announce: Callable[[str], None]) -> None:
    """Serve one page to browsers on this machine until interrupted; ``announce`` is told its address.

    Nothing else in the folder of the page is served. Port 0 takes any free one.
    """
    count("port", port, minimum=0)
    content = page.read_bytes()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.path in ("/", f"/{page.name}")
            self.send_response(200 if known else 404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(content if known else b"")

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: requests would clutter the terminal."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler) as server:
        announce(f"http://127.0.0.1:{server.server_port}/")
        server.serve_forever()
