"""What the tests do to a live engine. Each function runs in a process of its own and returns facts.

Weights "a" and "b" are different random tensors. The long prompt fills whole KV blocks, so that
its second use reads the prefix cache; it is long enough for vLLM's attention to split it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import models

from mx_quant import MXTensor
from mx_sync import Bucket, SyncError, TensorSource, TransferPlan, sync

Facts = dict[str, Any]

TEMPERATURE = 0.7
BUCKET_BYTES = 65536
PROMPTS = [[5, 6, 7], [9, 8, 7, 6, 5], [200], [i % 300 for i in range(3, 503)]]


@dataclass
class Sequence:
    prompt: list[int]
    completion: list[int]


class Scribbler:
    """A sink whose buffers turn to garbage as soon as ``write`` has returned."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def write(self, bucket: Bucket) -> None:
        self._sink.write(bucket)
        bucket.buffer.fill_(0xA5)


def boot(path: Path, precision: str, **changes: Any) -> Any:
    from mx_vllm import VllmSampler

    settings = {
        "precision": precision, "max_model_len": 600, "max_num_seqs": 32, "seed": 0,
        "version": "test@0", "kv_cache_gib": 0.125, "threads": 2,
    }  # fmt: skip
    return VllmSampler.boot(path, **(settings | changes))


def sample(sampler: Any, *, n: int = 1, prompts: list[list[int]] | None = None) -> list[Any]:
    return [
        (c.prompt_index, c.tokens, c.log_probs.tolist())
        for c in sampler.generate(
            prompts or PROMPTS, n=n, max_tokens=12, temperature=TEMPERATURE, seed=3
        )
    ]


def fresh(path: Path, precision: str) -> Any:
    """Samples of an engine booted on ``path``."""
    return sample(boot(path, precision))


def updated(root: Path, kind: str, tied: bool, precision: str) -> Facts:
    """Boot on A, move to B, and everything that can go wrong on the way."""
    sampler = boot(root / "a", precision)
    source = _sources(kind, tied, precision)
    facts: Facts = {"describe": sampler.describe(), "a": sample(sampler)}
    facts["batch"] = _batch(sampler)
    before = _pointers(sampler)
    report = sync(source("b", 1), [Scribbler(sampler.sink())], bucket_bytes=BUCKET_BYTES)
    facts["report"] = {
        "equal": report.bytes_equal, "checked": report.checked, "version": report.version
    }  # fmt: skip
    facts["pointers"] = before == _pointers(sampler), len(before)
    facts["b"] = sample(sampler)
    facts["labels"] = _labels(sampler)
    facts["score"] = _score(sampler)
    facts["order"] = _another_order(sampler, source)
    facts["flip"] = _flip(sampler, source)
    facts["killed"] = _killed(sampler, source)
    facts["requests"] = _bad_requests(sampler)
    facts["refused"] = _refused(sampler, source)
    sync(source("a", 9), [sampler.sink()], bucket_bytes=BUCKET_BYTES)
    facts["a again"] = sample(sampler)
    sampler.close()
    return facts


def _sources(kind: str, tied: bool, precision: str) -> Any:
    cfg = models.config(kind, tied=tied)
    form = models.on_grid if precision == "mxfp8" else dict
    held = {name: form(models.weights(cfg, seed=s)) for name, s in (("a", 1), ("b", 2))}

    def source(name: str, step: int, **changes: Any) -> TensorSource:
        return models.source(cfg, {**held[name], **changes}, step=step)

    return source


def _pointers(sampler: Any) -> dict[str, int]:
    """Addresses of every live parameter and of what the GEMMs read."""
    weights = sampler.sink()._engine
    found = {name: p.data_ptr() for name, p in weights.model.named_parameters()}
    for name, module in weights.model.named_modules():
        operand = module.__dict__.get("mx_operand")
        if operand is not None:
            found[f"{name}/operand"] = operand.storage.data_ptr()
    return found


def _batch(sampler: Any) -> Facts:
    batch = sample(sampler, n=8)
    alone = sample(sampler, prompts=PROMPTS[:1])
    again = sample(sampler, n=8)
    sequences = [Sequence(PROMPTS[index], tokens) for index, tokens, _ in batch]
    scored = sampler.score(sequences, temperature=TEMPERATURE)
    one = sampler.score(sequences[-1:], temperature=TEMPERATURE)
    return {
        "batch": batch, "alone": alone, "again": again,
        "scored": [s.tolist() for s in scored], "one": one[0].tolist(),
    }  # fmt: skip


def _labels(sampler: Any) -> Facts:
    completion = sampler.generate([[1, 2]], n=1, max_tokens=5, temperature=0, seed=0)[0]
    engine = sampler._llm.get_weight_version()
    return {"spans": completion.version_spans, "engine": engine, "sampler": sampler.version}


def _score(sampler: Any) -> Facts:
    greedy = sampler.generate([PROMPTS[1]], n=1, max_tokens=8, temperature=0, seed=0)[0]
    sequence = Sequence(PROMPTS[1], greedy.tokens)
    stop = sampler.generate(
        [PROMPTS[1]], n=1, max_tokens=8, temperature=0, seed=0, stop_token_ids=greedy.tokens[3:4]
    )[0]
    return {
        "greedy": greedy.log_probs.tolist(),
        "one": sampler.score([sequence], temperature=1.0)[0].tolist(),
        "half": sampler.score([sequence], temperature=0.5)[0].tolist(),
        "tokens": greedy.tokens, "stopped": stop.tokens, "reason": stop.finish_reason,
    }  # fmt: skip


def _another_order(sampler: Any, source: Any) -> Facts:
    """The parts of a fused module arrive far apart, and with other tensors in between."""
    held = source("b", 2)
    names = sorted(held.manifest().names, key=lambda name: name[::-1])
    shuffled = TensorSource(
        {name: held.tensor(name) for name in names},
        version=held.manifest().version,
        aliases=held.manifest().aliases,
    )
    report = sync(shuffled, [Scribbler(sampler.sink())], bucket_bytes=BUCKET_BYTES)
    return {"equal": report.bytes_equal, "b": sample(sampler)}


def _refusal(sampler: Any) -> str:
    try:
        sample(sampler)
    except SyncError as error:
        return f"{type(error).__name__}: {error}"
    return "generated"


def _flip(sampler: Any, source: Any) -> Facts:
    """One byte changes between the load and the read-back, in each place that matters."""
    weights = sampler.sink()._engine
    finalize = weights.finalize
    facts: Facts = {}
    for step, where in enumerate(("operand", "parameter", "norm", "head"), start=3):

        def broken(version: Any, where: str = where) -> None:
            finalize(version)
            _flip_byte(weights, where)

        weights.finalize = broken
        try:
            sync(source("b", step), [sampler.sink()], bucket_bytes=BUCKET_BYTES)
            names = ["not noticed"]
        except SyncError as error:
            names = sorted(error.names) if hasattr(error, "names") else [str(error)]
        finally:
            weights.finalize = finalize
        refusal = _refusal(sampler)
        report = sync(source("b", step), [sampler.sink()], bucket_bytes=BUCKET_BYTES)
        facts[where] = {"names": names, "refusal": refusal, "equal": report.bytes_equal}
    facts["b"] = sample(sampler)
    return facts


def _flip_byte(weights: Any, where: str) -> None:
    from mx_vllm.methods import operand_of

    modules = dict(weights.model.named_modules())
    up = modules["model.layers.1.mlp.gate_up_proj"]
    if where == "operand":
        # The first bytes of what the GEMM reads: the first row, which is the gate's.
        target = operand_of(up).storage
    elif where == "parameter":
        target = up.weight.data[-1]
    elif where == "norm":
        target = modules["model.norm"].weight.data
    else:
        target = operand_of(modules["lm_head"]).storage
    import torch

    target.view(-1).view(torch.uint8)[1] ^= 1


def _killed(sampler: Any, source: Any) -> Facts:
    """The sender dies after some buckets."""
    sink, dead = sampler.sink(), source("a", 7)
    plan = TransferPlan.of(dead.manifest(), bucket_bytes=BUCKET_BYTES)
    from mx_sync import Packer

    packer = Packer(dead.manifest(), tensor=dead.tensor)
    sink.begin(dead.manifest())
    for sequence in range(len(plan.buckets) // 2):
        buffer = sink.sender.buffer(plan.largest_bytes)[: plan.nbytes(sequence)]
        packer.pack(plan.buckets[sequence], out=buffer)
        sink.write(Bucket(sequence, plan.buckets[sequence], buffer))
    during = _refusal(sampler)
    sink.abort("the sender is gone")
    after = _refusal(sampler)
    report = sync(source("b", 8), [sink], bucket_bytes=BUCKET_BYTES)
    return {"during": during, "after": after, "equal": report.bytes_equal, "b": sample(sampler)}


def _refused(sampler: Any, source: Any) -> Facts:
    """Manifests that do not fit are refused; what was held goes on where nothing was touched."""
    facts: Facts = {}
    norm = "model.layers.0.input_layernorm.weight"
    plain = models.weights(models.config("llama", tied=True), seed=1)
    name = "model.layers.0.self_attn.q_proj.weight"
    held = source("b", 8).tensor(name)
    other = plain[name] if isinstance(held, MXTensor) else models.on_grid({name: held})[name]
    cases = {
        "missing": {
            k: source("b", 8).tensor(k) for k in source("b", 8).manifest().names if k != norm
        },
        "form": {
            k: source("b", 8).tensor(k) if k != name else other
            for k in source("b", 8).manifest().names
        },
    }
    for case, tensors in cases.items():
        made = source("b", 8)
        wrong = TensorSource(
            tensors, version=made.manifest().version, aliases=made.manifest().aliases
        )
        try:
            sync(wrong, [sampler.sink()], bucket_bytes=BUCKET_BYTES)
            facts[case] = "accepted"
        except (SyncError, ValueError) as error:
            facts[case] = f"{type(error).__name__}: {error}"
        facts[f"after {case}"] = _refusal(sampler)
    return facts


def _bad_requests(sampler: Any) -> Facts:
    ask = {"n": 1, "max_tokens": 4, "temperature": 1.0, "seed": 0}
    cases = {
        "empty": ([[]], ask), "long": ([[1] * 598], ask), "vocabulary": ([[300]], ask),
        "temperature": ([[1]], ask | {"temperature": -1.0}), "none": ([[1]], ask | {"n": 0}),
    }  # fmt: skip
    facts: Facts = {}
    for case, (prompts, settings) in cases.items():
        try:
            sampler.generate(prompts, **settings)
            facts[case] = "accepted"
        except ValueError as error:
            facts[case] = str(error)
    return facts


def boots(path: Path, precision: str) -> str:
    """Whether the checkpoint boots: "booted", or the error."""
    try:
        boot(path, precision)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "booted"


def grids(ignored: list[str], prefixes: list[str]) -> list[str]:
    """For each vLLM module, the grid that the config gives it, or the error."""
    from mx_vllm.configs import MxFp8Config

    config = MxFp8Config(frozenset(ignored))
    config.packed_modules_mapping = {
        "qkv_proj": ["q_proj", "k_proj", "v_proj"], "gate_up_proj": ["gate_proj", "up_proj"]
    }  # fmt: skip
    out = []
    for prefix in prefixes:
        try:
            grid = config.grid_of(prefix)
            out.append(grid.id if grid else "bf16")
        except ValueError as error:
            out.append(str(error))
    return out


def registered_twice() -> list[str]:
    """The plugin's names after two registrations."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
    from vllm.model_executor.layers.quantization import get_quantization_config

    from mx_vllm import register

    register()
    register()
    methods = [get_quantization_config(name).__name__ for name in ("mx_bf16", "modelopt_mxfp8")]
    return [*methods, str("mx" in WeightTransferEngineFactory._registry)]
