"""The parts of Megatron-Core that the learner uses; the only module that imports them.

Importing this module imports Megatron-Core (seconds) and raises ImportError with a remedy when it
is missing, of another version, or unable to run on this machine.
"""

from mx_megatron.compat import expected_warnings, require_megatron

require_megatron()

with expected_warnings():
    from megatron.core import parallel_state
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.models.backends import LocalSpecProvider
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_mlp_module_spec_for_backend
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
    from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.tensor_parallel.mappings import (
        copy_to_tensor_model_parallel_region,
        gather_from_sequence_parallel_region,
    )
    from megatron.core.transformer.attention import SelfAttention, SelfAttentionSubmodules
    from megatron.core.transformer.enums import AttnMaskType
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.module import MegatronModule
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig
    from megatron.core.transformer.transformer_layer import (
        TransformerLayer,
        TransformerLayerSubmodules,
    )

__all__ = [
    "AttnMaskType",
    "ColumnParallelLinear",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "DistributedOptimizer",
    "GPTModel",
    "IdentityOp",
    "LocalSpecProvider",
    "MegatronModule",
    "ModuleSpec",
    "OptimizerConfig",
    "RowParallelLinear",
    "SelfAttention",
    "SelfAttentionSubmodules",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "TransformerLayer",
    "TransformerLayerSubmodules",
    "clip_grad_by_total_norm_fp32",
    "copy_to_tensor_model_parallel_region",
    "finalize_model_grads",
    "gather_from_sequence_parallel_region",
    "get_bias_dropout_add",
    "get_megatron_optimizer",
    "get_mlp_module_spec_for_backend",
    "model_parallel_cuda_manual_seed",
    "parallel_state",
]
