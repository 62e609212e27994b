from collections.abc import Callable

import pytest

from mx_sync import TensorSource, TransferPlan
from mx_sync.plan import ALIGNMENT


@pytest.mark.parametrize("bucket_bytes", [64, 192, 4096, 1 << 20])
def test_every_byte_is_in_exactly_one_slice_and_no_slice_leaves_its_bucket(
    make_source: Callable[..., TensorSource], bucket_bytes: int
) -> None:
    manifest = make_source(1).manifest()
    plan = TransferPlan.of(manifest, bucket_bytes=bucket_bytes)
    covered: dict[tuple[str, str], int] = {}
    for slices in plan.buckets:
        end = 0
        for piece in slices:
            key = (piece.tensor, piece.part)
            assert piece.start_byte == covered.get(key, 0)
            covered[key] = piece.start_byte + piece.nbytes
            assert piece.nbytes > 0
            assert piece.offset_bytes % ALIGNMENT == 0
            assert piece.offset_bytes >= end
            end = piece.offset_bytes + piece.nbytes
        assert end <= bucket_bytes
    parts = {(s.name, p.part): p.nbytes for s in manifest.tensors for p in s.parts()}
    assert covered == parts


def test_a_tensor_that_fits_into_a_bucket_is_never_cut(
    make_source: Callable[..., TensorSource],
) -> None:
    manifest = make_source(1).manifest()
    plan = TransferPlan.of(manifest, bucket_bytes=8192)
    homes: dict[str, set[int]] = {}
    for number, slices in enumerate(plan.buckets):
        for piece in slices:
            homes.setdefault(piece.tensor, set()).add(number)
    cut = {name for name, where in homes.items() if len(where) > 1}
    assert cut == {"block.weight"}


def test_a_plan_says_how_much_of_a_buffer_each_bucket_fills(
    make_source: Callable[..., TensorSource],
) -> None:
    plan = TransferPlan.of(make_source(1).manifest(), bucket_bytes=1 << 20)
    assert len(plan.buckets) == 1
    last = plan.buckets[0][-1]
    assert plan.largest_bytes == plan.nbytes(0) == last.offset_bytes + ALIGNMENT


@pytest.mark.parametrize("bucket_bytes", [0, -64, 100])
def test_a_bucket_size_that_is_no_multiple_of_64_is_refused(
    make_source: Callable[..., TensorSource], bucket_bytes: int
) -> None:
    with pytest.raises(ValueError, match="multiple of 64"):
        TransferPlan.of(make_source(1).manifest(), bucket_bytes=bucket_bytes)
