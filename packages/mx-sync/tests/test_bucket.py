from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from mx_quant.digest import digest
from mx_quant.grids import MXFP8
from mx_quant.quantize import quantize
from mx_sync import (
    Assembler,
    Bucket,
    CoverageError,
    ManifestError,
    Packer,
    ProtocolError,
    Slice,
    TensorSource,
    TransferPlan,
    WeightVersion,
)
from mx_sync.bucket import spec_of


def packed(source: TensorSource, bucket_bytes: int) -> list[Bucket]:
    manifest = source.manifest()
    plan = TransferPlan.of(manifest, bucket_bytes=bucket_bytes)
    packer = Packer(manifest, tensor=source.tensor)
    buckets = []
    for sequence, slices in enumerate(plan.buckets):
        buffer = torch.empty(plan.nbytes(sequence), dtype=torch.uint8)
        packer.pack(slices, out=buffer)
        buckets.append(Bucket(sequence, slices, buffer))
    return buckets


@pytest.mark.parametrize("bucket_bytes", [64, 4096, 1 << 20])
def test_tensors_come_out_as_they_went_in(
    make_source: Callable[..., TensorSource], bucket_bytes: int
) -> None:
    source = make_source(1)
    manifest = source.manifest()
    assembler = Assembler(manifest)
    found = {}
    for bucket in packed(source, bucket_bytes):
        for name, tensor in assembler.add(bucket):
            assert name not in found
            found[name] = digest(tensor)
    assembler.require_complete()
    assert found == {spec.name: spec.digest for spec in manifest.tensors}


def test_a_tensor_inside_one_bucket_is_a_view_of_it_and_a_cut_one_is_not(
    make_source: Callable[..., TensorSource],
) -> None:
    source = make_source(1)
    assembler = Assembler(source.manifest())
    views = {}
    for bucket in packed(source, 8192):
        first = bucket.buffer.data_ptr()
        for name, tensor in assembler.add(bucket):
            memory = getattr(tensor, "elements", tensor).data_ptr()
            views[name] = first <= memory < first + bucket.buffer.numel()
    assert views == {name: name != "block.weight" for name in source.manifest().names}


def test_what_never_arrived_is_named_with_what_did(
    make_source: Callable[..., TensorSource],
) -> None:
    source = make_source(1)
    assembler = Assembler(source.manifest())
    for bucket in packed(source, 8192)[:-1]:
        list(assembler.add(bucket))
    with pytest.raises(CoverageError, match="did not arrive whole") as caught:
        assembler.require_complete()
    assert "scale" in caught.value.names
    assert "embed.weight" not in caught.value.names
    assert "nothing of 4 bytes" in str(caught.value)


def test_a_bucket_that_comes_twice_is_out_of_sequence(
    make_source: Callable[..., TensorSource],
) -> None:
    source = make_source(1)
    assembler = Assembler(source.manifest())
    first, *_ = packed(source, 8192)
    list(assembler.add(first))
    with pytest.raises(ProtocolError, match="expected: 1; found: 0"):
        assembler.add(first)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"tensor": "nobody"}, "no such part"),
        ({"part": "scales"}, "no such part"),
        ({"start_byte": 64}, "of 5120"),
        ({"start_byte": -64}, "of 5120"),
        ({"nbytes": 0}, "of 5120"),
        ({"nbytes": -5}, "of 5120"),
        ({"offset_bytes": 8192 - 64}, "of a buffer"),
        ({"offset_bytes": -64}, "of a buffer"),
        ({"offset_bytes": 2}, "of a buffer"),
    ],
)
def test_a_slice_outside_its_tensor_or_buffer_is_refused_before_anything_is_placed(
    make_source: Callable[..., TensorSource], change: dict[str, object], told: str
) -> None:
    source = make_source(1)
    first, *_ = packed(source, 8192)
    assert first.slices[0] == Slice("embed.weight", "data", 0, 5120, 0)
    wrong = replace(first.slices[0], **change)  # type: ignore[arg-type]
    buffer = torch.zeros(8192, dtype=torch.uint8)
    with pytest.raises(CoverageError, match=told):
        Assembler(source.manifest()).add(Bucket(0, (wrong,), buffer))


def test_bytes_that_came_already_are_refused_whichever_way_they_overlap(
    make_source: Callable[..., TensorSource],
) -> None:
    manifest = make_source(1).manifest()
    buffer = torch.zeros(8192, dtype=torch.uint8)

    def after(*ranges: tuple[int, int]) -> None:
        assembler = Assembler(manifest)
        for sequence, (start, stop) in enumerate(ranges):
            piece = Slice("embed.weight", "data", start, stop - start, 0)
            list(assembler.add(Bucket(sequence, (piece,), buffer)))

    after((0, 10), (20, 30), (10, 20), (40, 50), (30, 40))
    for again in [(0, 10), (5, 6), (9, 11), (19, 21), (15, 35), (0, 50), (29, 5120)]:
        with pytest.raises(CoverageError, match="overlap") as caught:
            after((0, 10), (20, 30), again)
        assert caught.value.names == ("embed.weight",)


def test_a_source_whose_tensor_is_not_what_its_manifest_says_is_named(
    make_source: Callable[..., TensorSource],
) -> None:
    source = make_source(1)
    manifest = source.manifest()
    plan = TransferPlan.of(manifest, bucket_bytes=1 << 20)
    buffer = torch.empty(plan.largest_bytes, dtype=torch.uint8)
    packer = Packer(manifest, tensor=lambda name: torch.zeros(40, 64))
    with pytest.raises(ManifestError, match=r"embed\.weight.*bf16 \(40, 64\); found: fp32"):
        packer.pack(plan.buckets[0], out=buffer)


def test_a_buffer_that_is_not_plain_bytes_is_refused() -> None:
    for wrong in (torch.zeros(4), torch.zeros(2, 2, dtype=torch.uint8)):
        with pytest.raises(ValueError, match="contiguous uint8"):
            Bucket(0, (), wrong)


def test_a_tensor_that_has_no_canonical_form_is_refused_by_name() -> None:
    with pytest.raises(ManifestError, match="the.name"):
        spec_of("the.name", torch.zeros(3, dtype=torch.int64))
    with pytest.raises(ManifestError, match="the.name"):
        spec_of("the.name", torch.zeros(0))
    columnwise = quantize(torch.randn(32, 32).bfloat16(), grid=MXFP8, axis=-2)
    with pytest.raises(ManifestError, match="expected: axis -1"):
        TensorSource({"w": columnwise}, version=WeightVersion("r", 0)).manifest()
