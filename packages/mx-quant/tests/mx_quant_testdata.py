"""Data that breaks quantizers: every magnitude, both zeros, NaN payloads, infinities."""

import torch
from torch import Tensor


def every_bf16() -> Tensor:
    """All 65,536 bf16 bit patterns, in order."""
    return torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16)


def blocks_with_amax(amax: Tensor, *, width: int = 32, seed: int = 0) -> Tensor:
    """``[len(amax), width]``: first column ``amax``, the others smaller, down to nothing."""
    generator = torch.Generator().manual_seed(seed)
    shape = (len(amax), width)
    fraction = torch.rand(shape, generator=generator, dtype=torch.float64)
    fraction = fraction * torch.exp2(-torch.randint(0, 22, shape, generator=generator).double())
    fraction = fraction * torch.randint(0, 2, shape, generator=generator).mul(2).sub(1)
    fraction[:, 0] = 1
    x = (amax.double().unsqueeze(1) * fraction).to(amax.dtype)
    x[:, 0] = amax
    return x


def mixed(rows: int, columns: int, dtype: torch.dtype, *, kind: str, seed: int = 0) -> Tensor:
    """A matrix of one ``kind``: gauss, heavy, subnormal, huge or special."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator, dtype=torch.float64)
    if kind == "heavy":
        x = x * torch.exp(6 * torch.randn(rows, columns, generator=generator, dtype=torch.float64))
    elif kind == "subnormal":
        x = x * 2.0**-124
    elif kind == "huge":
        x = x * (2.0**126 if dtype != torch.float16 else 2.0**14)
    x = x.to(dtype)
    if kind == "special":
        flat, size = x.view(-1), x.numel()
        bits = torch.int32 if dtype == torch.float32 else torch.int16
        for value in [0.0, -0.0, float("inf"), -float("inf"), float("nan")]:
            flat[torch.randint(0, size, (max(1, size // 97),), generator=generator)] = value
        # NaN payloads: every mantissa bit and the sign set
        flat[:: max(1, size // 61)] = torch.tensor(-1, dtype=bits).view(dtype)
        x[: rows // 8] = 0
        x[rows // 8 : rows // 4] = float("nan")
    return x


KINDS = ("gauss", "heavy", "subnormal", "huge", "special")
