"""vLLM as it comes, generating the same number of tokens from the same prompts: a peer to measure
against. Run as a program of its own: a JSON request on standard input, a JSON answer on standard
output; ``VLLM_PLUGINS`` must be empty, so that nothing of this project is in it.

The engine is found by name, because this package depends on no engine.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mx_rl.bench.clock import median_seconds
from mx_rl.types import SampleRequest

ENVIRONMENT = {
    "VLLM_PLUGINS": "",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "HF_HUB_OFFLINE": "1",
}


def plain_vllm_seconds(
    model: Path,
    request: SampleRequest,
    *,
    rounds: int,
    environment: Mapping[str, str],
    base_environment: Mapping[str, str],
    max_model_len: int,
) -> dict[str, Any]:
    """Seconds and tokens of one generation in a process of its own.

    Raises RuntimeError with the end of its output if it fails.
    """
    asked = {
        "model": str(model),
        "prompts": [list(prompt) for prompt in request.prompts],
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "rounds": rounds,
        "max_model_len": max_model_len,
    }
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        env={**base_environment, **environment, **ENVIRONMENT},
        check=False,
    )
    lines = done.stdout.strip().splitlines()
    if done.returncode != 0 or not lines:
        raise RuntimeError(f"plain vLLM ended with {done.returncode}: {done.stderr[-2000:]}")
    answer: dict[str, Any] = json.loads(lines[-1])
    return answer


def main() -> None:
    """The program."""
    asked = json.load(sys.stdin)
    vllm: Any = importlib.import_module("vllm")
    engine = vllm.LLM(
        model=asked["model"],
        dtype="bfloat16",
        enforce_eager=True,
        skip_tokenizer_init=True,
        generation_config="vllm",
        max_model_len=asked["max_model_len"],
        max_num_seqs=len(asked["prompts"]),
        kv_cache_memory_bytes=2**30,
        disable_log_stats=True,
        seed=0,
    )
    prompts = [{"prompt_token_ids": prompt} for prompt in asked["prompts"]]
    settings = vllm.SamplingParams(
        temperature=asked["temperature"],
        max_tokens=asked["max_tokens"],
        ignore_eos=True,
        detokenize=False,
        logprobs=0,
    )
    counted = []

    def once() -> None:
        outputs = engine.generate(prompts, settings, use_tqdm=False)
        counted.append(sum(len(output.outputs[0].token_ids) for output in outputs))

    seconds = median_seconds(once, rounds=asked["rounds"])
    if set(counted) != {len(prompts) * asked["max_tokens"]}:
        raise RuntimeError(f"plain vLLM generated {sorted(set(counted))} tokens")
    print(json.dumps({"seconds": seconds, "tokens": counted[0], "vllm": vllm.__version__}))
    sys.stdout.flush()
    os._exit(0)  # its own shutdown takes longer than the measurement


if __name__ == "__main__":
    main()
