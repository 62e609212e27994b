"""The emulated linear layer against fp64, and the bitwise properties that it promises."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from mx_quant import gemm, operand, reference
from mx_quant.digest import digest
from mx_quant.gemm import Gemm
from mx_quant.grids import FP8_BLOCK_128X128, MXFP8, MXFP8_32X32, MXFP8_E5M2, Grid
from mx_quant.linear import LinearWeights, Operand, linear, linear_forward

SHAPES = [(576, 576), (1536, 576), (576, 1536), (128, 128), (192, 576), (3072, 576), (96, 160)]
ROWS = [*range(1, 65), 100, 257, 512]


def data(rows: int, columns: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator).bfloat16()


def on_grid(x: Tensor, grid: Grid | None, axis: int = -1) -> Tensor:
    if grid is None:
        return x.double()
    return reference.dequantize(reference.quantize(x, grid=grid, axis=axis)).double()


def close(got: Tensor, expected: Tensor) -> None:
    """Within the one rounding to bf16, half an ulp of 2^-8, and fp32 accumulation."""
    error = (got.double() - expected).abs()
    assert (error <= expected.abs() * 2**-8 + expected.abs().max() * 1e-5).all(), error.max()


@pytest.fixture(params=list(Gemm), ids=str)
def any_gemm(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Gemm:
    """Each GEMM in turn, whatever this machine would choose."""
    chosen: Gemm = request.param
    if chosen is Gemm.NATIVE and not gemm.native.available():
        pytest.skip(gemm.native.load().reason)
    for module in (gemm, operand):
        monkeypatch.setattr(module, "selected", lambda: chosen)
    return chosen


@pytest.mark.parametrize(("n", "k"), SHAPES)
@pytest.mark.parametrize("grid", [MXFP8, None], ids=["mxfp8", "plain"])
def test_a_row_does_not_depend_on_the_number_of_rows_or_its_place(
    n: int, k: int, grid: Grid | None, threads: Callable[[int], None]
) -> None:
    w, x = data(n, k, 1), data(520, k, 2)
    weight = (
        Operand.from_tensor(w) if grid is None else LinearWeights.quantize(w, grid=grid).forward
    )
    whole = linear_forward(x, weight, grid=grid)
    threads(1)
    for rows in ROWS:
        start = rows % 8
        part = linear_forward(x[start : start + rows], weight, grid=grid)
        assert torch.equal(part, whole[start : start + rows]), rows


def test_torch_fp32_fallback_is_row_invariant_too(
    monkeypatch: pytest.MonkeyPatch, threads: Callable[[int], None]
) -> None:
    for module in (gemm, operand):
        monkeypatch.setattr(module, "selected", lambda: Gemm.TORCH_FP32)
    threads(1)
    weight, x = Operand.from_tensor(data(192, 576, 1)), data(300, 576, 2)
    whole = linear_forward(x, weight, grid=MXFP8)
    for rows in (1, 2, 3, 5, 16, 31, 33, 63, 64, 65, 200):
        assert torch.equal(linear_forward(x[7 : 7 + rows], weight, grid=MXFP8), whole[7 : 7 + rows])


@pytest.mark.usefixtures("needs_native")
def test_the_native_gemm_does_not_depend_on_the_thread_count(
    monkeypatch: pytest.MonkeyPatch, threads: Callable[[int], None]
) -> None:
    for module in (gemm, operand):
        monkeypatch.setattr(module, "selected", lambda: Gemm.NATIVE)
    w, x, dy = data(576, 1536, 1), data(70, 1536, 2), data(70, 576, 3)
    results = []
    for count in (1, 2, 3, 7):
        threads(count)
        weights = LinearWeights.quantize(w, grid=MXFP8)
        y = linear_forward(x, weights.forward, grid=MXFP8)
        dw = gemm.weight_gradient(dy, x, grid=MXFP8, grad_grid=MXFP8, dtype=torch.bfloat16)
        results.append((y, dw))
    for y, dw in results[1:]:
        assert torch.equal(y, results[0][0])
        assert torch.equal(dw, results[0][1])


@pytest.mark.usefixtures("needs_native")
def test_the_native_gemm_is_one_chain_of_fused_multiply_adds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """fp64 holds a product of bf16 values exactly, so each step can be followed."""
    for module in (gemm, operand):
        monkeypatch.setattr(module, "selected", lambda: Gemm.NATIVE)
    w, x = data(40, 1056, 1), data(7, 1056, 2)
    chain = torch.zeros(7, 40, dtype=torch.float32)
    for k in range(1056):
        exact = x[:, k].double().unsqueeze(1) * w[:, k].double() + chain.double()
        chain = exact.float()
    y = Operand.from_tensor(w).apply(x.float(), grid=None)
    different = (y != chain).float().mean().item()
    assert different < 0.05, "only double rounding of the fp64 sum may differ"
    torch.testing.assert_close(y, chain, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("grid", [MXFP8, MXFP8_E5M2, MXFP8_32X32, None], ids=str)
def test_forward_equals_fp64_on_the_quantized_values(any_gemm: Gemm, grid: Grid | None) -> None:
    w, x = data(96, 160, 1), data(45, 160, 2)
    if grid is MXFP8_32X32:
        x = data(64, 160, 2)
    weights = LinearWeights.plain(w) if grid is None else LinearWeights.quantize(w, grid=grid)
    assert weights.forward.gemm is any_gemm
    close(linear_forward(x, weights.forward, grid=grid), on_grid(x, grid) @ on_grid(w, grid).t())


@pytest.mark.parametrize("tokens", [1, 31, 64, 100])
@pytest.mark.parametrize(
    ("grid", "grad_grid"), [(MXFP8, None), (MXFP8, MXFP8_E5M2), (None, None)], ids=str
)
def test_gradients_equal_fp64_on_the_operands_of_transformer_engine(
    any_gemm: Gemm, tokens: int, grid: Grid | None, grad_grid: Grid | None
) -> None:
    w = torch.nn.Parameter(data(96, 160, 1))
    x, dy = data(tokens, 160, 2).requires_grad_(), data(tokens, 96, 3)
    of_w = w.detach()
    weights = LinearWeights.plain(of_w) if grid is None else LinearWeights.quantize(of_w, grid=grid)
    linear(x, w, weights, grid=grid, grad_grid=grad_grid).backward(dy)
    of_dy = grad_grid or grid
    pad = (0, 0, 0, -tokens % 32)
    columnwise = [
        on_grid(torch.nn.functional.pad(t, pad), g, -2)
        for t, g in ((dy, of_dy), (x.detach(), grid))
    ]
    assert x.grad is not None
    assert w.grad is not None
    assert w.grad.dtype == torch.bfloat16
    close(x.grad, on_grid(dy, of_dy) @ on_grid(of_w, grid, -2))
    close(w.grad, columnwise[0].t() @ columnwise[1])


def test_leading_axes_and_strided_inputs() -> None:
    w, x = data(64, 96, 1), data(60, 96, 2)
    weights = LinearWeights.quantize(w, grid=MXFP8)
    flat = linear_forward(x, weights.forward, grid=MXFP8)
    nested = linear_forward(x.reshape(3, 4, 5, 96), weights.forward, grid=MXFP8)
    assert torch.equal(nested, flat.reshape(3, 4, 5, 64))
    wide = torch.cat([x, x], dim=1)[:, :96]
    assert not wide.is_contiguous()
    assert torch.equal(linear_forward(wide, weights.forward, grid=MXFP8), flat)
    assert linear_forward(x[:0], weights.forward, grid=MXFP8).shape == (0, 64)


def test_updating_weights_keeps_the_memory_and_equals_fresh_ones() -> None:
    for grid in (MXFP8, None):
        make = (
            LinearWeights.plain if grid is None else lambda w: LinearWeights.quantize(w, grid=MXFP8)
        )
        weights, new = make(data(64, 96, 1)), data(64, 96, 2)
        assert weights.backward is not None
        addresses = weights.forward.storage.data_ptr(), weights.backward.storage.data_ptr()
        weights.update_from(new)
        fresh = make(new)
        assert fresh.backward is not None
        assert addresses == (
            weights.forward.storage.data_ptr(),
            weights.backward.storage.data_ptr(),
        )
        assert torch.equal(weights.forward.matrix, fresh.forward.matrix)
        assert torch.equal(weights.backward.matrix, fresh.backward.matrix)
        if grid is not None:
            assert digest(weights.rowwise) == digest(fresh.rowwise)


def test_forward_and_backward_operands_hold_the_two_quantizations() -> None:
    w = data(64, 96, 1)
    weights = LinearWeights.quantize(w, grid=MXFP8)
    assert weights.backward is not None
    assert torch.equal(weights.forward.matrix.double(), on_grid(w, MXFP8))
    assert torch.equal(weights.backward.matrix.double(), on_grid(w, MXFP8, -2))


def test_inference_weights_refuse_the_backward() -> None:
    w, x = torch.nn.Parameter(data(64, 96)), data(4, 96).requires_grad_()
    weights = LinearWeights.quantize(w.detach(), grid=MXFP8, backward=False)
    with pytest.raises(RuntimeError, match="backward=True"):
        linear(x, w, weights, grid=MXFP8).sum().backward()


def test_weights_of_another_grid_are_refused() -> None:
    w = torch.nn.Parameter(data(64, 96))
    with pytest.raises(ValueError, match="weights lie on no grid, the layer runs on grid 'mxfp8'"):
        linear(data(4, 96), w, LinearWeights.plain(w.detach()), grid=MXFP8)


def test_a_weight_that_is_no_multiple_of_the_block_is_refused() -> None:
    with pytest.raises(ValueError, match="axis -1 has 40"):
        LinearWeights.quantize(data(64, 40), grid=MXFP8)
    with pytest.raises(ValueError, match="axis -2 has 40"):
        LinearWeights.quantize(data(40, 64), grid=MXFP8)


def test_activations_that_do_not_fit_are_refused() -> None:
    weights = LinearWeights.quantize(data(64, 96), grid=MXFP8)
    with pytest.raises(ValueError, match="do not fit an operand of depth 96"):
        linear_forward(data(4, 64), weights.forward, grid=MXFP8)
    with pytest.raises(ValueError, match="expected bf16, fp16 or fp32"):
        linear_forward(data(4, 96).double(), weights.forward, grid=MXFP8)


def test_fp32_scale_grids_run_through_the_same_layer() -> None:
    w, x = data(128, 256, 1), data(128, 256, 2)
    weights = LinearWeights.quantize(w, grid=FP8_BLOCK_128X128)
    expected = on_grid(x, FP8_BLOCK_128X128) @ on_grid(w, FP8_BLOCK_128X128).t()
    close(linear_forward(x, weights.forward, grid=FP8_BLOCK_128X128), expected)
