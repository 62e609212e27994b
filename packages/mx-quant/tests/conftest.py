import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
import torch

from mx_quant import eager, native

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["eager", "native"])
def backend(request: pytest.FixtureRequest) -> ModuleType:
    """Each CPU backend; both have quantize, dequantize and encode."""
    if request.param == "native" and not native.available():
        pytest.skip(native.load().reason)
    return {"eager": eager, "native": native}[request.param]


@pytest.fixture
def needs_native() -> None:
    if not native.available():
        pytest.skip(native.load().reason)


@pytest.fixture
def threads() -> "Iterator[Callable[[int], None]]":
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)
