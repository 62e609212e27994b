from __future__ import annotations

import sys
import warnings
from pathlib import Path

import pytest

from mx_rl.models import prepare_model

# The helpers of these tests are imported by name, also in the processes that tests start.
sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with its tokenizer."""
    with warnings.catch_warnings():
        # transformers imports whatever it finds installed; those packages' warnings are not ours.
        warnings.simplefilter("ignore")
        return prepare_model("tiny-llama", cache=tmp_path_factory.mktemp("cache"))
