"""What tests with Hugging Face share; they are skipped where it is not installed."""

import pytest

pytest.importorskip("transformers", reason="transformers is not installed: pip install 'bayesdp[transformers]'")
pytest.importorskip("accelerate", reason="accelerate is not installed: pip install 'bayesdp[transformers]'")
