"""SGLang settings under which a weight update succeeds and the engine computes on something else.

Each was met on a running SGLang 0.5.23; the reason stands beside the setting.
"""

from collections.abc import Mapping

# Backends that permute the weight in place at load, keep its shape and dtype, and cannot repeat
# the permutation: bytes of the next update land in the permuted buffer.
_SHUFFLING = frozenset({"flashinfer_trtllm", "flashinfer_trtllm_routed"})


def check_server_args(args: Mapping[str, object], *, checkpoint_is_mxfp8: bool) -> None:
    """Refuse server settings that break a live MXFP8 weight sync; all of them in one error.

    Args:
        args: SGLang's server arguments by name (`ServerArgs` as a dict).
        checkpoint_is_mxfp8: whether `model_path` holds a serialized MXFP8 checkpoint.

    Raises:
        ValueError: naming every refused setting, why, and what to set instead.
    """
    problems = []
    if args.get("quantization") == "mxfp8" and not checkpoint_is_mxfp8:
        problems.append(
            "quantization=mxfp8 on a BF16 checkpoint: quantized at load and not re-loadable from "
            "BF16 (the next update is cast without scales and reports success); serve a "
            "serialized MXFP8 checkpoint and leave `quantization` unset"
        )
    for key in ("fp8_gemm_runner_backend", "moe_runner_backend"):
        if args.get(key) in _SHUFFLING:
            problems.append(
                f"{key}={args[key]}: shuffles weights in place and cannot be re-processed after "
                "an update; choose cutlass or triton"
            )
    if problems:
        raise ValueError("settings that a live weight sync cannot survive: " + "; ".join(problems))
