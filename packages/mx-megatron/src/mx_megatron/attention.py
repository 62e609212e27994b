"""The attention core: causal, grouped-query, for right-padded batches.

Shapes: S positions, B sequences, H query heads, G key/value groups, D head size.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from mx_megatron.mcore import AttnMaskType, MegatronModule
from mx_quant import compute_dtype


class CausalAttention(MegatronModule):  # type: ignore[misc]
    """Causal attention over whole right-padded sequences.

    Padding needs no mask: it comes after the tokens, so no token sees it, and nothing reads what
    it computes. On CPUs without bf16 GEMMs the core runs in fp32 on the bf16 values, which is both
    faster there and closer to the exact result; the output is rounded once to the query's dtype.

    Megatron-Core's own local core is not used: it multiplies with baddbmm in bf16 and materialises
    a repeated key and value per query head.
    """

    def __init__(self, config: Any, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        super().__init__(config=config)
        self.scale = softmax_scale

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        attn_mask_type: AttnMaskType | None = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
        **_: Any,
    ) -> Tensor:
        """query [S, B, H, D], key and value [S, B, G, D] -> [S, B, H * D], query's dtype.

        Raises ValueError for anything but causal attention over an unpacked batch.
        """
        if (
            attention_mask is not None
            or attention_bias is not None
            or packed_seq_params is not None
        ):
            raise ValueError(
                "this attention core takes right-padded causal batches: no mask, bias or packing"
            )
        if attn_mask_type not in (None, AttnMaskType.causal):
            raise ValueError(f"attention mask type {attn_mask_type}; only causal is supported")
        dtype = compute_dtype() if query.device.type == "cpu" else query.dtype
        q, k, v = (t.permute(1, 2, 0, 3).to(dtype) for t in (query, key, value))
        out = scaled_dot_product_attention(
            q, k, v, is_causal=True, scale=self.scale, enable_gqa=q.shape[1] != k.shape[1]
        )
        rows, batch = query.shape[:2]
        result: Tensor = out.permute(2, 0, 1, 3).to(query.dtype).reshape(rows, batch, -1)
        return result
