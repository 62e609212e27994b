"""What must hold for the installed Megatron-Core and this machine, and what to do otherwise."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import logging
import warnings
from collections.abc import Iterator
from typing import Any, Literal

import torch

import mx_quant

MEGATRON_VERSION = "0.19.2"

Backend = Literal["te", "emulation"]

_SILENT_WITHOUT_TE = ("fp8", "fp4", "fp8_param", "fp4_param", "fp8_recipe", "fp4_recipe")
_BLACKWELL = (10, 0)
_EXPECTED = (
    ".*(is|are) not installed",  # Apex, Transformer Engine: none of them is needed
    ".*is not available",
    ".*is experimental and still under active development",
    "full scope is deprecated",  # a default of TransformerConfig's CUDA graph settings
)


@contextlib.contextmanager
def expected_warnings() -> Iterator[None]:
    """Hides what Megatron-Core says, when imported and built, about things that nobody here chose.

    Among them: GPTModel is deprecated upstream; DDP works out its own parameter layout.
    """
    logger = logging.getLogger("megatron.core")
    level = logger.level
    with warnings.catch_warnings():
        for message in _EXPECTED:
            warnings.filterwarnings("ignore", message=message)
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=FutureWarning)
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def require_megatron() -> str:
    """The version of the importable Megatron-Core.

    Raises ImportError when it is missing, is another version, or cannot run on a machine without
    CUDA (the published wheel cannot) while this one has none.
    """
    try:
        found = importlib.util.find_spec("megatron.core")
    except ModuleNotFoundError:
        found = None
    if found is None:
        raise ImportError(
            f"megatron-core is not installed; expected {MEGATRON_VERSION}. Install "
            "mx-megatron[megatron], or, for machines without CUDA, the patched wheel that the "
            "repository's engine build makes"
        )
    with expected_warnings():
        # Not __version__: Megatron-Core adds the commit of whatever git work tree it lies in.
        from megatron.core.package_info import __shortversion__ as version
    if version != MEGATRON_VERSION:
        raise ImportError(
            f"megatron-core is {version}; the learner is written against {MEGATRON_VERSION}. "
            f"Install megatron-core=={MEGATRON_VERSION}"
        )
    patched = importlib.util.find_spec("megatron.core.device_utils") is not None
    if not torch.cuda.is_available() and not patched:
        raise ImportError(
            f"megatron-core {version} as published needs CUDA and this machine has none. Install "
            "the patched wheel that the repository's engine build makes (patches/megatron-core)"
        )
    return str(version)


def megatron_label() -> str:
    """Version for logs: the installed distribution's if there is one, else the package's own."""
    version = require_megatron()
    try:
        return importlib.metadata.version("megatron-core")
    except importlib.metadata.PackageNotFoundError:
        return f"{version} (source tree)"


def choose_backend() -> tuple[Backend, str]:
    """Who multiplies MXFP8 here, and why: Transformer Engine on Blackwell, else the emulation."""
    if importlib.util.find_spec("transformer_engine") is None:
        return "emulation", "transformer_engine is not installed"
    if not torch.cuda.is_available():
        return "emulation", "this machine has no CUDA device"
    capability = torch.cuda.get_device_capability()
    if capability < _BLACKWELL:
        return "emulation", f"compute capability {capability} has no MXFP8 (needs {_BLACKWELL})"
    return "te", f"transformer_engine on compute capability {capability}"


def refuse_silent_bf16(config: Any, *, backend: Backend) -> None:
    """Raises ValueError if ``config`` asks for low precision that would not happen.

    Megatron-Core's local layers read none of the ``fp8``/``fp4`` fields of TransformerConfig: a
    run with ``fp8="e4m3"`` and no Transformer Engine trains in plain bf16 and says nothing.
    """
    if backend == "te":
        return
    defaults = {"fp8_recipe": "delayed", "fp4_recipe": "nvfp4"}
    found = {
        name: value
        for name in _SILENT_WITHOUT_TE
        if (value := getattr(config, name, None)) and value != defaults.get(name)
    }
    if found:
        told = ", ".join(f"{name}={value!r}" for name, value in found.items())
        raise ValueError(
            f"TransformerConfig has {told}, which Megatron-Core ignores without Transformer "
            "Engine: training would run in plain bf16. Leave these fields unset and choose the "
            "grid with the learner's precision='mxfp8' and layers=..."
        )


def arithmetic() -> dict[str, str]:
    """What a result's last bit depends on: quantizer, GEMM, torch, threads, instruction set."""
    return {
        "quantizer": mx_quant.backend(),
        "compute_dtype": str(mx_quant.compute_dtype()).removeprefix("torch."),
        "torch": torch.__version__,
        "torch_threads": str(torch.get_num_threads()),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
    }
