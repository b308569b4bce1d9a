"""Property tests are repeatable by default; `make test-slow` explores, with many more examples."""

import gc
import os

# Two workers on two processors: threads of their own would only wait for each other. Before NumPy or PyTorch is loaded.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
# glibc returns freed arrays to the system, which clears each page again: a fifth of the time of a training. Read when a
# process starts, so it is for the workers and for the programs that tests start.
os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", str(32 << 20))
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", str(512 << 20))

gc.disable()  # while everything is imported, of which it takes a sixth of the time

from hypothesis import settings  # noqa: E402

settings.register_profile("repeatable", max_examples=40, derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collections: each would look at a million objects that never go."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let Python end at once: it would look at everything that was imported once more, for a second or two."""
    gc.freeze()
