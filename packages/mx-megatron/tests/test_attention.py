from types import SimpleNamespace
from typing import Any

import pytest
import torch

from mx_megatron.attention import CausalAttention
from mx_megatron.mcore import AttnMaskType


def core() -> Any:
    return CausalAttention(SimpleNamespace())


def tensors(heads: int, groups: int, *, length: int = 13, batch: int = 3, size: int = 32) -> Any:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(length, batch, n, size, generator=generator).to(torch.bfloat16).requires_grad_()
        for n in (heads, groups, groups)
    ]


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    repeats = q.shape[2] // k.shape[2]
    k, v = (t.repeat_interleave(repeats, dim=2) for t in (k, v))
    scores = torch.einsum("sbhd,tbhd->bhst", q, k) * q.shape[-1] ** -0.5
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    return torch.einsum("bhst,tbhd->sbhd", weights, v).flatten(2)


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (4, 2), (4, 1), (9, 3)])
def test_output_and_gradients_equal_plain_attention_within_bf16_rounding(
    heads: int, groups: int
) -> None:
    q, k, v = tensors(heads, groups)
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    out, expected = core()(q, k, v, None), exact(*wide)
    seed = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    out.backward(seed.to(torch.bfloat16))
    expected.backward(seed.to(torch.bfloat16).double())
    torch.testing.assert_close(out.double(), expected, rtol=2**-6, atol=2**-7)
    for ours, theirs in zip((q, k, v), wide, strict=True):
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=2**-5, atol=2**-5)


def test_a_position_sees_nothing_after_it() -> None:
    q, k, v = (t.detach() for t in tensors(4, 2))
    before = core()(q, k, v, None)
    k[7:], v[7:] = 99.0, 99.0
    after = core()(q, k, v, None)
    assert torch.equal(before[:7], after[:7])
    assert not torch.equal(before[7:], after[7:])


@pytest.mark.parametrize(
    "changes",
    [
        {"attention_bias": torch.zeros(1)},
        {"packed_seq_params": object()},
        {"attn_mask_type": AttnMaskType.padding},
    ],
)
def test_what_the_core_does_not_do_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="causal"):
        core()(*tensors(4, 2), None, **changes)
