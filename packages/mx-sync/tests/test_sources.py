from collections.abc import Callable

import pytest
import torch

from mx_quant.digest import digest
from mx_sync import ManifestError, TensorSource, WeightVersion


def test_a_manifest_describes_every_tensor_as_it_is_now(
    make_source: Callable[..., TensorSource],
) -> None:
    source = make_source(1)
    for spec in source.manifest().tensors:
        assert spec.digest == digest(source.tensor(spec.name))
        assert spec.shape == tuple(source.tensor(spec.name).shape)


def test_a_tensor_that_changed_has_another_digest() -> None:
    weight = torch.ones(4)
    source = TensorSource({"w": weight}, version=WeightVersion("r", 0))
    before = source.manifest().spec("w").digest
    weight[2] = 3
    assert source.manifest().spec("w").digest != before


def test_a_name_that_is_not_there_is_named(make_source: Callable[..., TensorSource]) -> None:
    with pytest.raises(ManifestError, match="nobody"):
        make_source(1).tensor("nobody")
