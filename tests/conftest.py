"""Property tests are repeatable by default; `make test-slow` explores, with many more examples."""

import os

# Two workers on two processors: threads of their own would only wait for each other. Before NumPy or PyTorch is loaded.
for library in ("OMP", "MKL", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

from hypothesis import settings  # noqa: E402

settings.register_profile("repeatable", max_examples=40, derandomize=True, deadline=None)
settings.register_profile("explore", max_examples=1000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))
