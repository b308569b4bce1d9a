"""What tests with Lightning share; they are skipped where it is not installed."""

import pytest

pytest.importorskip("lightning", reason="Lightning is not installed: pip install 'bayesdp[lightning]'")
