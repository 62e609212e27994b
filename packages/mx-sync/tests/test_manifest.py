from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from mx_quant.grids import FP8_BLOCK_128X128, MXFP8, MXFP8_32X32
from mx_sync import Manifest, ManifestError, TensorSource, TensorSpec, WeightVersion

DIGEST = "0123456789abcdef" * 2
VERSION = WeightVersion("r", 1)


def spec(name: str = "a", shape: tuple[int, ...] = (4, 64), dtype: str = "bf16") -> TensorSpec:
    return TensorSpec(name, shape, dtype, None, DIGEST)


def test_a_tensor_on_a_grid_travels_as_elements_and_scales() -> None:
    parts = TensorSpec("e", (2, 32, 64), "e4m3", MXFP8, DIGEST).parts()
    assert [(p.part, p.shape, p.dtype, p.nbytes) for p in parts] == [
        ("elements", (2, 32, 64), torch.float8_e4m3fn, 4096),
        ("scales", (2, 32, 2), torch.uint8, 128),
    ]


def test_scales_of_a_ragged_block_grid_are_rounded_up_and_fp32() -> None:
    scales = TensorSpec("b", (130, 200), "e4m3", FP8_BLOCK_128X128, DIGEST).parts()[1]
    assert (scales.shape, scales.dtype, scales.nbytes) == ((2, 2), torch.float32, 16)


@pytest.mark.parametrize(
    ("shape", "grid", "dtype"),
    [
        ((4, 48), MXFP8, "e4m3"),
        ((4, 64), MXFP8, "bf16"),
        ((4, 64), MXFP8_32X32, "e4m3"),
        ((4, 64), MXFP8, "e5m2"),
        ((), MXFP8, "e4m3"),
        ((64,), MXFP8_32X32, "e4m3"),
    ],
)
def test_a_shape_or_dtype_that_does_not_fit_its_grid_is_refused(shape, grid, dtype) -> None:
    with pytest.raises(ManifestError, match="does not fit the grid") as caught:
        TensorSpec("the.name", shape, dtype, grid, DIGEST)
    assert "the.name" in str(caught.value)


@pytest.mark.parametrize("shape", [(0,), (4, -1), (True,), (2.0,), [4], (1,) * 9, (2**45,)])
def test_a_shape_that_no_tensor_has_is_refused(shape: object) -> None:
    with pytest.raises(ManifestError, match="bad shape"):
        spec(shape=shape)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "a\nb", "a\x00", "x" * 513, 3, None])
def test_a_name_that_cannot_be_printed_on_a_line_is_refused(name: object) -> None:
    with pytest.raises(ManifestError, match="bad tensor name"):
        spec(name)  # type: ignore[arg-type]


@pytest.mark.parametrize("digest", ["", DIGEST[:-1], DIGEST.upper(), DIGEST + "0", "g" * 32])
def test_a_digest_that_is_not_32_hex_digits_is_refused(digest: str) -> None:
    with pytest.raises(ManifestError, match="bad digest"):
        replace(spec(), digest=digest)


def test_a_tensor_larger_than_the_bound_is_refused_without_being_allocated() -> None:
    with pytest.raises(ManifestError, match="too large"):
        spec(shape=(2**30, 2**30))


def test_all_faults_of_a_manifest_are_told_at_once() -> None:
    with pytest.raises(ManifestError) as caught:
        Manifest(VERSION, (spec("a"), spec("a")), (("a", "a"), ("b", "nowhere"), ("c", "b")))
    text = str(caught.value)
    assert text.count("'a' appears more than once") == 2
    assert "'b' points at 'nowhere'" in text
    assert "'c' points at 'b'" in text
    assert len(caught.value.fields["faults"]) == 4


def test_a_manifest_without_tensors_is_refused() -> None:
    with pytest.raises(ManifestError, match="0 tensors"):
        Manifest(VERSION, ())


def test_names_bytes_and_layer_set_come_from_the_specs(
    make_source: Callable[..., TensorSource],
) -> None:
    manifest = make_source(3).manifest()
    assert manifest.quantized == ("q.weight", "experts.weight", "block.weight")
    assert "lm_head.weight" not in manifest.names
    assert manifest.targets["lm_head.weight"] == "embed.weight"
    assert manifest.spec("lm_head.weight") is manifest.spec("embed.weight")
    quantized = 64 * 96 * 33 // 32 + 2 * 32 * 64 * 33 // 32 + 130 * 200 + 16
    assert manifest.nbytes == 40 * 64 * 2 + quantized + 14 + 4


def test_asking_for_a_name_that_is_not_there_names_it() -> None:
    with pytest.raises(ManifestError, match=r"no such tensor \[tensor: b; version: r@1"):
        Manifest(VERSION, (spec("a"),)).spec("b")
