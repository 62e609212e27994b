import json
import random
import tracemalloc
from collections.abc import Callable

import pytest

from mx_sync import Manifest, ManifestError, TensorSource
from mx_sync.codec import MAX_ENCODED_BYTES

DIGEST = "0" * 32


def document(**changes: object) -> dict[str, object]:
    tensor = {"name": "a", "shape": [4], "dtype": "bf16", "grid": None, "digest": DIGEST}
    base = {"schema": "mx-sync/manifest/1", "version": {"run": "r", "step": 1}}
    return base | {"tensors": [tensor], "aliases": []} | changes


def with_tensor(**changes: object) -> dict[str, object]:
    (tensor,) = document()["tensors"]  # type: ignore[misc]
    return document(tensors=[tensor | changes])


def decode(value: object) -> Manifest:
    return Manifest.decode(json.dumps(value).encode())


def test_a_manifest_is_decoded_back_from_its_encoding(
    make_source: Callable[..., TensorSource],
) -> None:
    manifest = make_source(1).manifest()
    assert Manifest.decode(manifest.encode()) == manifest


def test_the_plain_document_of_these_tests_is_valid() -> None:
    assert decode(document()).names == ("a",)


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ([], "at manifest"),
        (document(schema="mx-sync/manifest/2"), "at schema"),
        (document(extra=1), "at manifest"),
        ({k: v for k, v in document().items() if k != "aliases"}, "at manifest"),
        (document(tensors={}), "at manifest.tensors"),
        (document(tensors=[[]]), "at tensors[0]"),
        (document(version={"run": "r", "step": True}), "at version.step"),
        (document(version={"run": "r", "step": -1}), "at version"),
        (document(version={"run": "../r", "step": 1}), "at version"),
        (document(aliases=[["b"]]), "at aliases[0]"),
        (document(aliases=[["b", "zzz"]]), "points at"),
        (document(aliases=[["b", ["a"]]]), "at aliases[0]"),
        (with_tensor(name=7), "at tensors[0].name"),
        (with_tensor(shape=4), "at tensors[0].shape"),
        (with_tensor(shape=[4.0]), "at tensors[0].shape"),
        (with_tensor(shape=[[4]]), "at tensors[0].shape"),
        (with_tensor(shape=[2**50]), "bad shape"),
        (with_tensor(shape=[0]), "bad shape"),
        (with_tensor(dtype="float32"), "unknown dtype"),
        (with_tensor(dtype="e4m3", grid="mxfp9"), "at tensors[0].grid"),
        (with_tensor(grid=1), "at tensors[0].grid"),
        (with_tensor(digest="x"), "bad digest"),
        (with_tensor(code="import os"), "at tensors[0]"),
    ],
)
def test_a_wrong_document_is_refused_and_the_place_is_named(wrong: object, told: str) -> None:
    with pytest.raises(ManifestError) as caught:
        decode(wrong)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"null",
        b"NaN",
        b"[" * 200_000,
        b'{"a":' * 50_000,
        b"1" * 5000,
        json.dumps(document()).encode()[:-1],
        json.dumps(document()).encode() + b"x",
        json.dumps(document()).encode().replace(b'"step": 1', b'"step": 1, "step": 1'),
        json.dumps(document()).encode().replace(b'"step": 1', b'"step": 99999999999999999'),
        json.dumps(document()).encode().replace(b'"step": 1', b'"step": Infinity'),
        b" " * (MAX_ENCODED_BYTES + 1),
    ],
    ids=range(14),
)
def test_bytes_that_are_no_document_are_refused(data: bytes) -> None:
    with pytest.raises(ManifestError, match="malformed manifest"):
        Manifest.decode(data)


def test_a_surrogate_in_a_name_is_refused_by_both_sides() -> None:
    with pytest.raises(ManifestError):
        decode(with_tensor(name="\ud800"))


def test_decoding_allocates_by_the_length_of_the_input_not_by_its_numbers() -> None:
    data = json.dumps(with_tensor(shape=[2**20, 2**20])).encode()
    tracemalloc.start()
    try:
        Manifest.decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2**20


def test_random_damage_never_raises_anything_but_a_manifest_error(
    make_source: Callable[..., TensorSource],
) -> None:
    whole = make_source(1).manifest().encode()
    rng = random.Random(0)
    refused = 0
    for _ in range(3000):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[at] = rng.randrange(256)
                case 1:
                    del data[at : at + rng.randrange(1, 40)]
                case 2:
                    data[at:at] = data[rng.randrange(len(data)) :][: rng.randrange(1, 40)]
        try:
            Manifest.decode(bytes(data))
        except ManifestError:
            refused += 1
    assert refused > 2000
