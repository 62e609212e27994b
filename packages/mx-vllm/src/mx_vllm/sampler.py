"""Sampling with log-probabilities and weight versions, on a live vLLM in this process.

Log-probabilities are natural, float32, of the distribution that was sampled from: the softmax of
logits / temperature over the whole vocabulary. Greedy tokens (temperature 0) carry those of
temperature 1. top-p and top-k are not offered: they would change that distribution silently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from mx_sync import TransactionalSink, WeightVersion
from mx_vllm import compat, plugin, seeds
from mx_vllm.checkpoint import Checkpoint

_METHODS = {"bf16": plugin.BF16, "mxfp8": plugin.MXFP8}


class Scorable(Protocol):
    """A prompt and what followed it, as token ids."""

    @property
    def prompt(self) -> Sequence[int]: ...

    @property
    def completion(self) -> Sequence[int]: ...


@dataclass(frozen=True, slots=True)
class Completion:
    """``log_probs``: float32, one per token. ``finish_reason``: "stop" or "length".

    ``version_spans``: (start, stop, version) over ``tokens``, contiguous.
    """

    prompt_index: int
    tokens: list[int]
    log_probs: np.ndarray[Any, np.dtype[np.float32]]
    finish_reason: str
    version_spans: list[tuple[int, int, str]]


class VllmSampler:
    """One vLLM engine on the CPU, its sink, and what it is asked for. Build it with ``boot``."""

    def __init__(self, llm: Any, sink: TransactionalSink, *, facts: dict[str, str]) -> None:
        self._llm = llm
        self._sink = sink
        self._facts = facts

    @classmethod
    def boot(
        cls,
        path: str | Path,
        *,
        precision: str,
        max_model_len: int,
        max_num_seqs: int,
        seed: int,
        version: str,
        kv_cache_gib: float = 1.0,
        threads: int | None = None,
    ) -> VllmSampler:
        """Start an engine on the checkpoint directory ``path``.

        ``precision``: "mxfp8" (a serialized MXFP8 checkpoint) or "bf16" (a plain one).
        ``max_model_len``: longest prompt plus completion, in tokens. ``version``: what the weights
        in ``path`` are called, "run@step". ``threads``: see ``compat.prepare_environment``.

        Raises:
            UnsupportedCheckpoint: ``path`` cannot be served in ``precision``.
            ValueError: a version that does not parse, a size below 1, a K not divisible by 32.
            RuntimeError: the wrong vLLM, or a live layer set that is not the checkpoint's.
        """
        held = WeightVersion.parse(version)
        _require_positive(max_model_len=max_model_len, max_num_seqs=max_num_seqs)
        checkpoint = Checkpoint.read(path, precision=precision)
        threads = compat.prepare_environment(threads=threads)
        facts = compat.check_platform()
        plugin.register()
        llm = _start(
            checkpoint, precision, max_model_len, max_num_seqs, seed, kv_cache_gib, threads
        )
        from mx_quant.linear import selected
        from mx_vllm.audit import check_layer_set
        from mx_vllm.engine import live_worker
        from mx_vllm.names import canonical_places
        from mx_vllm.sink import open_sink

        check_layer_set(canonical_places(live_worker(llm).model_runner.model), checkpoint)
        facts |= {
            "precision": precision,
            "gemm": f"emulated on {selected()}",
            "threads": str(torch.get_num_threads()),
        }
        return cls(llm, open_sink(llm, version=held), facts=facts)

    @property
    def version(self) -> str:
        """What the sampler last held whole, "run@step"."""
        return str(self._sink.version)

    def sink(self) -> TransactionalSink:
        """Where a sync delivers the next version."""
        return self._sink

    def describe(self) -> dict[str, str]:
        """Engine versions, instruction set, precision, GEMM and threads."""
        return dict(self._facts)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        *,
        n: int,
        max_tokens: int,
        temperature: float,
        seed: int,
        stop_token_ids: Sequence[int] = (),
    ) -> list[Completion]:
        """``n`` completions of each prompt, in prompt order. Only ``stop_token_ids`` stop early.

        Each completion has a seed of its own, derived from ``seed``, the prompt's index and the
        sample's: the same call gives the same tokens, whatever else is in the batch.

        Raises:
            SamplerPoisoned, SyncInProgress: no whole version is held.
            ValueError: an empty prompt, a bad size or temperature, or too long a request.
        """
        from vllm import SamplingParams

        self._sink.require_ready()
        _require_positive(n=n, max_tokens=max_tokens)
        _require_temperature(temperature, zero=True)
        self._require_fits(prompts, extra=max_tokens)
        requests, params = [], []
        for index, prompt in enumerate(prompts):
            for sample in range(n):
                requests.append({"prompt_token_ids": list(prompt)})
                params.append(
                    SamplingParams(
                        temperature=temperature,
                        max_tokens=max_tokens,
                        seed=seeds.derive(seed, index, sample),
                        logprobs=0,
                        ignore_eos=True,
                        stop_token_ids=list(stop_token_ids),
                        detokenize=False,
                    )
                )
        if not requests:
            return []
        outputs = self._llm.generate(requests, params, use_tqdm=False)
        return [_completion(i // n, output.outputs[0]) for i, output in enumerate(outputs)]

    def score(
        self, sequences: Sequence[Scorable], *, temperature: float
    ) -> list[np.ndarray[Any, np.dtype[np.float32]]]:
        """Log-probabilities of each sequence's completion under the held weights.

        Bit-equal to those that ``generate`` returned for the same tokens, weights and temperature.
        Raises as ``generate``; ValueError also for temperature 0.
        """
        from vllm import SamplingParams

        self._sink.require_ready()
        _require_temperature(temperature, zero=False)
        wholes = [[*s.prompt, *s.completion] for s in sequences]
        self._require_fits([s.prompt for s in sequences], extra=0)
        self._require_fits(wholes, extra=0)
        params = SamplingParams(
            temperature=0.0, max_tokens=1, prompt_logprobs=0, ignore_eos=True, detokenize=False
        )
        if not wholes:
            return []
        with self._prompt_temperature(temperature):
            outputs = self._llm.generate(
                [{"prompt_token_ids": whole} for whole in wholes], params, use_tqdm=False
            )
        return [
            _prompt_log_probs(output, whole, len(sequence.prompt))
            for output, whole, sequence in zip(outputs, wholes, sequences, strict=True)
        ]

    def close(self) -> None:
        """Stop the engine and release what it holds in this process."""
        from vllm.distributed import cleanup_dist_env_and_memory

        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        cleanup_dist_env_and_memory()

    @contextmanager
    def _prompt_temperature(self, temperature: float) -> Iterator[None]:
        """vLLM 0.32 scores prompts at temperature 1 only; divide its logits as sampling does."""
        from mx_vllm.engine import live_worker

        live = live_worker(self._llm).model_runner.sampler
        divisor = torch.tensor([[temperature]], dtype=torch.float32)

        def compute(logits: torch.Tensor) -> torch.Tensor:
            return (logits.to(torch.float32) / divisor).log_softmax(dim=-1, dtype=torch.float32)

        live.compute_logprobs = compute
        try:
            yield
        finally:
            del live.compute_logprobs

    def _require_fits(self, prompts: Sequence[Sequence[int]], *, extra: int) -> None:
        config = self._llm.llm_engine.model_config
        limit, vocabulary = config.max_model_len - 1, config.get_vocab_size()
        for index, prompt in enumerate(prompts):
            if not len(prompt):
                raise ValueError(f"prompt {index} is empty; the first token needs one to follow")
            if len(prompt) + extra > limit:
                raise ValueError(
                    f"prompt {index} has {len(prompt)} tokens, with {extra} to come more than the "
                    f"{limit} of max_model_len; boot with a larger one, or shorten the request"
                )
            if min(prompt) < 0 or max(prompt) >= vocabulary:
                raise ValueError(f"prompt {index} has token ids outside 0 to {vocabulary - 1}")


def _start(
    checkpoint: Checkpoint,
    precision: str,
    max_model_len: int,
    max_num_seqs: int,
    seed: int,
    kv_cache_gib: float,
    threads: int,
) -> Any:
    from vllm import LLM

    set_num_threads = torch.set_num_threads
    set_num_threads(threads)
    # One token more than asked for, because scoring a whole sequence also samples a token.
    length = max_model_len + 1
    try:
        return LLM(
            model=str(checkpoint.path),
            quantization=_METHODS[precision],
            dtype="bfloat16",
            # torch.compile may fuse differently by shape: rows would depend on the batch.
            enforce_eager=True,
            skip_tokenizer_init=True,
            generation_config="vllm",
            max_model_len=length,
            max_num_seqs=max_num_seqs,
            # A request with its own seed whose prompt is cut in chunks makes vLLM 0.32 rewind its
            # generator, which CPU generators cannot do.
            enable_chunked_prefill=False,
            max_num_batched_tokens=max(length, 2048),
            enable_prefix_caching=True,
            kv_cache_memory_bytes=int(kv_cache_gib * 2**30),
            logprobs_mode="processed_logprobs",
            weight_transfer_config={"backend": plugin.TRANSFER},
            seed=seed,
            disable_log_stats=True,
        )
    finally:
        # vLLM's CPU worker replaces it by a function that ignores its argument.
        torch.set_num_threads = set_num_threads
        set_num_threads(threads)


def _completion(prompt_index: int, output: Any) -> Completion:
    tokens = list(output.token_ids)
    log_probs = np.array(
        [step[token].logprob for step, token in zip(output.logprobs, tokens, strict=True)],
        dtype=np.float32,
    )
    spans = [(span.start, span.end, span.version) for span in output.weight_versions]
    return Completion(prompt_index, tokens, log_probs, str(output.finish_reason), spans)


def _prompt_log_probs(
    output: Any, tokens: list[int], start: int
) -> np.ndarray[Any, np.dtype[np.float32]]:
    steps = output.prompt_logprobs[start:]
    return np.array(
        [step[token].logprob for step, token in zip(steps, tokens[start:], strict=True)],
        dtype=np.float32,
    )


def _require_positive(**sizes: int) -> None:
    for name, value in sizes.items():
        if value < 1:
            raise ValueError(f"{name} must be at least 1, found {value}")


def _require_temperature(temperature: float, *, zero: bool) -> None:
    low = 0.0 if zero else 1e-3
    if temperature == 0 and zero:
        return
    if not (math.isfinite(temperature) and temperature >= max(low, 1e-3)):
        raise ValueError(
            f"temperature must be {'0 (greedy) or ' if zero else ''}at least 0.001, found "
            f"{temperature}"
        )
