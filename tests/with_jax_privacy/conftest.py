"""Tests that need JAX Privacy: `make test-engines` runs them; elsewhere they are skipped."""

import os
from importlib.util import find_spec

# Read when JAX starts its first computation: several devices to spread a step over.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")
os.environ.setdefault("KERAS_BACKEND", "jax")

collect_ignore_glob = [] if find_spec("jax_privacy") else ["test_*.py"]
collect_ignore = [
    file
    for library, file in (("keras", "test_keras_model.py"), ("opacus", "test_same_as_opacus.py"))
    if find_spec(library) is None
]
