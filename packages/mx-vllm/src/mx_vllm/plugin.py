"""What vLLM calls when it loads its plugins.

On the CPU it adds, without a patch:
    ``modelopt_mxfp8``  serialized MXFP8 checkpoints, emulated W8A8 (overrides upstream's, which has
                        no CPU kernel)
    ``mx_bf16``         BF16 whose weights stay readable and whose rows do not depend on the batch
    weight transfer     the engine ``mx``, for live updates
"""

from __future__ import annotations

BF16 = "mx_bf16"
MXFP8 = "modelopt_mxfp8"
TRANSFER = "mx"


def register() -> None:
    """Idempotent. Does nothing on other platforms than the CPU."""
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.layers.quantization import register_quantization_config

    from mx_vllm.configs import MxBf16Config, MxFp8Config

    register_quantization_config(MXFP8)(MxFp8Config)
    register_quantization_config(BF16)(MxBf16Config)
    if TRANSFER not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(
            TRANSFER, "mx_vllm.transfer", "MxWeightTransferEngine"
        )
