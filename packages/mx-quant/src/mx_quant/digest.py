"""The canonical digest: XXH3-128 over a header, the element bytes and the scale bytes.

It answers "are these the same bytes on the same grid?", against accidents, not against attackers.
"""

from __future__ import annotations

import torch
import xxhash
from torch import Tensor

from mx_quant.tensor import MXTensor


def _update(state: xxhash.xxh3_128, t: Tensor) -> None:
    data = t.detach().contiguous().cpu().reshape(-1).view(torch.uint8)
    state.update(data.numpy().data)


def digest(t: MXTensor | Tensor) -> str:
    """32 hex digits over grid id, axis, shape, dtype, element bytes and scale bytes.

    Contiguous CPU memory is hashed in place; anything else is copied first. A plain tensor has
    grid ``none``.
    """
    if isinstance(t, MXTensor):
        header = f"mx1|{t.grid.id}|{t.axis}|{tuple(t.shape)}|{t.grid.element.name}"
        parts = [t.elements, t.scales]
    else:
        header = f"mx1|none|-1|{tuple(t.shape)}|{str(t.dtype).removeprefix('torch.')}"
        parts = [t]
    state = xxhash.xxh3_128(header.encode())
    for part in parts:
        _update(state, part)
    return state.hexdigest()
