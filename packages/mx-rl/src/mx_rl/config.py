"""The configuration of a run: every setting, its type, its default, and what it means.

A recipe returns a ``Config``; ``overrides`` changes single keys of it; ``load`` turns pydantic's
complaints into one message that names the key, what was expected, what was found, and the nearest
key that exists.
"""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from mx_rl.errors import UserError, did_you_mean

Precision = Literal["mxfp8", "bf16"]

REFUSED = {
    "sampling.top_p": "a truncated distribution has a support that the learner does not know, so "
    "log-probabilities would not mean the same on both sides; use sampling.temperature",
}
REFUSED |= {f"sampling.{key}": REFUSED["sampling.top_p"] for key in ("top_k", "min_p")}
"""Keys that exist elsewhere and are left out here on purpose, and why."""


class Section(BaseModel):
    """Immutable, and no unknown keys."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """``path``: a Hugging Face checkpoint directory, or smollm2-135m, tiny-qwen3, tiny-llama."""

    path: str = "smollm2-135m"


class TaskConfig(Section):
    """Where prompts and rewards come from; see ``tasks``.

    ``dataset``: reasoning-gym's name of the task, with ``options`` for it. ``path``: a JSONL file
    with ``question_field`` and ``answer_field``. ``target_tokens``: tokens that the easy task
    rewards. ``reward``: ``module:function`` instead of the task's own scorer. ``prompt``: text
    around the question, with ``{question}`` in it. ``chat``: through the tokenizer's chat template,
    with ``system`` if given, or as plain text. ``extract``: what is scored, the completion's last
    number, what stands in <answer> tags, or all of its text.
    """

    kind: Literal["reasoning_gym", "jsonl", "target_tokens"] = "reasoning_gym"
    dataset: str = "chain_sum"
    options: dict[str, Any] = Field(default_factory=dict)
    path: str | None = None
    question_field: str = "question"
    answer_field: str = "answer"
    target_tokens: tuple[int, ...] = ()
    reward: str | None = None
    prompt: str = "{question}"
    chat: bool = True
    system: str | None = None
    extract: Literal["last_number", "answer_tag", "text"] = "text"
    size: int = Field(default=10_000, ge=1)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if "{question}" not in self.prompt:
            raise ValueError(f"prompt must contain {{question}}, found {self.prompt!r}")
        if self.kind == "jsonl" and self.path is None:
            raise ValueError("kind='jsonl' needs path, the data set's file")
        if self.kind == "target_tokens" and not self.target_tokens:
            raise ValueError("kind='target_tokens' needs target_tokens, at least one token id")
        return self


class SamplingConfig(Section):
    """``max_model_len``: the longest prompt and completion together, in tokens."""

    prompts_per_step: int = Field(default=8, ge=1)
    group_size: int = Field(default=4, ge=2)
    max_tokens: int = Field(default=32, ge=1)
    temperature: float = Field(default=1.0, gt=0.0, le=10.0)
    stop_at_eos: bool = True
    max_model_len: int = Field(default=256, ge=8)
    max_num_seqs: int = Field(default=32, ge=1)
    kv_cache_gib: float = Field(default=1.0, gt=0.0)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.max_tokens >= self.max_model_len:
            raise ValueError(
                f"max_tokens={self.max_tokens} leaves no room for a prompt in "
                f"max_model_len={self.max_model_len}"
            )
        return self


class AlgorithmConfig(Section):
    """GRPO. ``updates_per_batch``: optimizer steps on each batch; ``importance_cap``: see
    ``correction``, null switches it off; the other terms: see ``advantage`` and ``loss``."""

    scale_by_std: bool = True
    std_epsilon: float = Field(default=1e-6, ge=0.0)
    clip_low: float = Field(default=0.2, ge=0.0, lt=1.0)
    clip_high: float = Field(default=0.2, ge=0.0)
    normalization: Literal["token", "sequence"] = "token"
    importance_cap: float | None = Field(default=2.0, gt=0.0)
    kl_coef: float = Field(default=0.0, ge=0.0)
    updates_per_batch: int = Field(default=1, ge=1)


class OptimizerConfig(Section):
    """AdamW at a constant learning rate; ``clip_grad``: largest gradient norm, 0 for no limit."""

    learning_rate: float = Field(default=1e-5, ge=0.0)
    weight_decay: float = Field(default=0.0, ge=0.0)
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = Field(default=1e-8, gt=0.0)
    clip_grad: float = Field(default=1.0, ge=0.0)
    micro_batch_tokens: int = Field(default=2048, ge=1)


class PrecisionConfig(Section):
    """``layers``: which decoder layers are on the grid: all, none, fraction:X, skip:FIRST,LAST."""

    learner: Precision = "mxfp8"
    sampler: Precision = "mxfp8"
    layers: str = Field(default="all", pattern=r"^(all|none|fraction:[0-9.]+|skip:\d+,\d+)$")


class SyncConfig(Section):
    """``readback``: how many of the weights are read back at each commit: all, off, or a fraction
    such as 0.1. ``timeout_s``: the longest that one message to the sampler may take."""

    bucket_mib: int = Field(default=16, ge=1)
    readback: Literal["all", "off"] | float = "all"
    timeout_s: float = Field(default=300.0, gt=0.0)

    @field_validator("readback")
    @classmethod
    def _share(cls, value: str | float) -> str | float:
        if not isinstance(value, str) and not 0.0 < value <= 1.0:
            raise ValueError(f"a fraction must be above 0 and at most 1, found {value}")
        return value


class RunConfig(Section):
    """``dir``: where run directories are made; ``checkpoint_every``: steps between checkpoints (0:
    only at the end); ``keep_checkpoints``: how many to keep; ``precision_table``: at the end, the
    KL of all four pairs of precisions at the final weights."""

    name: str = Field(default="run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    dir: str = "runs"
    steps: int = Field(default=10, ge=1)
    seed: int = Field(default=0, ge=0, lt=2**31)
    checkpoint_every: int = Field(default=0, ge=0)
    keep_checkpoints: int = Field(default=2, ge=1)
    precision_table: bool = False


class EngineConfig(Section):
    """Which adapters: a name from the entry points mx.learners and mx.samplers, or module:Class."""

    learner: str = "megatron"
    sampler: str = "vllm"


class RayConfig(Section):
    """``address``: a running cluster, or null for a private one on this machine. ``threads``: what
    each role may use (null: all cores; they take turns). ``gpus``: how many each role gets; 0 hides
    them. ``call_timeout_s``: the longest that one generation, update or start may take."""

    address: str | None = None
    gpus: float = Field(default=0.0, ge=0.0)
    threads: int | None = Field(default=None, ge=1)
    call_timeout_s: float = Field(default=1800.0, gt=0.0)


class Config(Section):
    """Everything about a run."""

    model: ModelConfig = ModelConfig()
    task: TaskConfig = TaskConfig()
    sampling: SamplingConfig = SamplingConfig()
    algorithm: AlgorithmConfig = AlgorithmConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    precision: PrecisionConfig = PrecisionConfig()
    engines: EngineConfig = EngineConfig()
    sync: SyncConfig = SyncConfig()
    run: RunConfig = RunConfig()
    ray: RayConfig = RayConfig()


def load(values: dict[str, Any]) -> Config:
    """``values`` as a Config. Raises UserError that names every wrong key at once."""
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        lines = [_complaint(item) for item in error.errors()]
        raise UserError("configuration: " + "; ".join(dict.fromkeys(lines))) from None


def keys() -> list[str]:
    """Every key that ``--set`` takes, as section.key."""
    return [
        f"{name}.{key}"
        for name, field in Config.model_fields.items()
        for key in _fields(field.annotation)
    ]


def _fields(annotation: object) -> list[str]:
    is_section = isinstance(annotation, type) and issubclass(annotation, Section)
    return list(annotation.model_fields) if is_section else []  # type: ignore[attr-defined]


def _complaint(item: Any) -> str:
    # Members of a union appear as further parts of the location; the key is the first two.
    key = ".".join(str(part) for part in item["loc"][:2])
    if item["type"] == "extra_forbidden":
        return unknown_key(key)
    found = "" if isinstance(item["input"], dict) else f"; found {item['input']!r}"
    message = item["msg"].removeprefix("Value error, ")
    return f"{key}: {message}{found}"


def unknown_key(key: str) -> str:
    """What to say about a key that does not exist."""
    if key in REFUSED:
        return f"{key} is refused: {REFUSED[key]}"
    section = key.partition(".")[0]
    allowed = [known for known in keys() if known.startswith(f"{section}.")]
    if not allowed:
        sections = ", ".join(Config.model_fields)
        near = did_you_mean(section, Config.model_fields) or did_you_mean(key, keys())
        return f"{key}: no such section{near} (sections: {sections})"
    near = did_you_mean(key, allowed) or did_you_mean(key, keys())
    return f"{key}: no such key{near} (allowed: {', '.join(allowed)})"
