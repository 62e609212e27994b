"""The contract suite on the engine in a dictionary, and proof that the suite can fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from torch import Tensor

from mx_quant.tensor import MXTensor
from mx_sync import SyncError, TensorSource
from mx_sync.manifest import Manifest
from mx_sync.testing import Harness, MemoryEngine, SinkContract


def harness_of(engine: MemoryEngine, make_source: Callable[..., TensorSource]) -> Harness:
    @contextmanager
    def corrupt(name: str) -> Iterator[None]:
        engine.on["finalize"] = lambda live: live.flip_byte(name)
        yield
        del engine.on["finalize"]

    return Harness(engine, make_source, bucket_bytes=8192, corrupt=corrupt)


class TestMemoryEngine(SinkContract):
    @pytest.fixture
    def harness(self, make_source: Callable[..., TensorSource]) -> Harness:
        return harness_of(MemoryEngine(set(make_source(1).manifest().targets)), make_source)


class Holder(MemoryEngine):
    """Keeps views of the transfer buffer instead of copying."""

    def place(self, name: str, tensor: MXTensor | Tensor) -> None:
        self.storage[name] = tensor


class Sticky(MemoryEngine):
    """Never replaces a tensor that it has."""

    def place(self, name: str, tensor: MXTensor | Tensor) -> None:
        if name not in self.storage:
            super().place(name, tensor)


class Tied(MemoryEngine):
    """Keeps its own copy of the tied tensor, made at the first sync."""

    def read_back(self, name: str) -> MXTensor | Tensor:
        if name == "lm_head.weight":
            name = "tied copy"
            self.storage.setdefault(name, self.storage["embed.weight"].clone())
        return super().read_back(name)


class Hasty(MemoryEngine):
    """Changes what it computes with before the names were checked."""

    def expected_names(self) -> set[str]:
        if self.storage:
            self.flip_byte("norm.weight")
        return self.names


class Deaf(MemoryEngine):
    """Does not notice that a sync was opened again after a failure."""

    def open(self, manifest: Manifest) -> None:
        if "discard" in self.calls:
            raise SyncError("cannot recover")
        super().open(manifest)


@pytest.mark.parametrize(
    ("kind", "test"),
    [
        (Holder, SinkContract.test_the_transfer_buffer_may_be_overwritten_once_write_returns),
        (
            Sticky,
            SinkContract.test_a_later_version_replaces_every_tensor_and_an_earlier_one_comes_back_whole,
        ),
        (
            Tied,
            SinkContract.test_a_later_version_replaces_every_tensor_and_an_earlier_one_comes_back_whole,
        ),
        (Hasty, SinkContract.test_names_that_do_not_match_are_refused_before_anything_changes),
        (Deaf, SinkContract.test_a_bucket_that_never_came_is_named_and_poisons),
    ],
)
def test_an_engine_that_breaks_the_contract_is_found_out(
    kind: type[MemoryEngine],
    test: Callable[[SinkContract, Harness], None],
    make_source: Callable[..., TensorSource],
) -> None:
    engine = kind(set(make_source(1).manifest().targets))
    with pytest.raises((AssertionError, SyncError)):
        test(SinkContract(), harness_of(engine, make_source))
