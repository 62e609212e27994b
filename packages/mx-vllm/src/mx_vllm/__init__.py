"""vLLM as a sampler on the learner's grid.

``VllmSampler`` is the way in. vLLM itself finds ``plugin.register`` by entry point. Nothing here
imports vLLM before a sampler is booted or vLLM loads the plugin.
"""

from mx_vllm.checkpoint import Checkpoint, UnsupportedCheckpoint
from mx_vllm.compat import SUPPORTED_VLLM, check_platform, prepare_environment
from mx_vllm.plugin import register
from mx_vllm.sampler import Completion, VllmSampler

__all__ = [
    "SUPPORTED_VLLM",
    "Checkpoint",
    "Completion",
    "UnsupportedCheckpoint",
    "VllmSampler",
    "check_platform",
    "prepare_environment",
    "register",
]
