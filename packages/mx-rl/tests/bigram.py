"""The smallest real policy: a table of next-token scores, trained and sampled on the CPU.

Learner and sampler keep the loop's protocols and sync through mx_sync like a real engine, so the
loop, the workers and the actors are tested without one. ``engines.learner=bigram:BigramLearner``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mx_quant.grids import MXFP8
from mx_quant.quantize import quantize
from mx_rl.roles import TokenSequence
from mx_rl.types import Floats
from mx_sync import TensorSource, TransactionalSink, WeightVersion
from mx_sync.testing import MemoryEngine

VOCABULARY = 512
NAME = "scores.weight"


def next_log_probs(scores: torch.Tensor, tokens: list[int], temperature: float) -> torch.Tensor:
    return torch.log_softmax(scores[torch.tensor(tokens)] / temperature, dim=-1)


class BigramLearner:
    def __init__(self, scores: torch.Tensor, *, learning_rate: float, run: str, precision: str):
        self.scores = torch.nn.Parameter(scores)
        self.version = WeightVersion(run, 0)
        self.precision = precision
        self._optimizer = torch.optim.SGD([self.scores], lr=learning_rate, momentum=0.9)

    @classmethod
    def from_checkpoint(cls, path: str, **settings: Any) -> BigramLearner:
        if not (Path(path) / "config.json").is_file():
            raise FileNotFoundError(f"{path} has no config.json")
        if settings["threads"] is not None:
            torch.set_num_threads(settings["threads"])
        made = torch.Generator().manual_seed(settings["seed"])
        scores = torch.randn(VOCABULARY, VOCABULARY, generator=made)
        keys = ("learning_rate", "run", "precision")
        return cls(scores, **{key: settings[key] for key in keys})

    def _weights(self, precision: str | None) -> torch.Tensor:
        if (precision or self.precision) == "bf16":
            return self.scores
        rounded = quantize(self.scores.detach(), grid=MXFP8).dequantize(torch.float32)
        return self.scores + (rounded - self.scores).detach()

    def _score(self, sequence: TokenSequence, temperature: float, precision: str | None) -> Any:
        before = [sequence.prompt[-1], *sequence.completion[:-1]]
        table = next_log_probs(self._weights(precision), before, temperature)
        return table.gather(1, torch.tensor(sequence.completion)[:, None])[:, 0]

    def log_probs(
        self,
        sequences: Sequence[TokenSequence],
        *,
        temperature: float,
        micro_batch_tokens: int,
        precision: str | None = None,
    ) -> list[Floats]:
        with torch.no_grad():
            return [self._score(s, temperature, precision).numpy() for s in sequences]

    def step(
        self,
        sequences: Sequence[TokenSequence],
        loss_fn: Callable[..., tuple[torch.Tensor, dict[str, float]]],
        *,
        temperature: float,
        micro_batch_tokens: int,
    ) -> dict[str, float]:
        self._optimizer.zero_grad()
        scores = [self._score(s, temperature, None) for s in sequences]
        loss, metrics = loss_fn(scores, list(range(len(sequences))))
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        self.version = WeightVersion(self.version.run, self.version.step + 1)
        return {**metrics, "loss": loss.item(), "tokens": float(sum(map(len, scores)))}

    def source(self, *, precision: str | None = None) -> TensorSource:
        weights = self.scores.detach()
        value = (
            weights if (precision or self.precision) == "bf16" else quantize(weights, grid=MXFP8)
        )
        return TensorSource({NAME: value}, version=self.version)

    def save(self, directory: str) -> None:
        Path(directory).mkdir()
        state = {"scores": self.scores.detach(), "optimizer": self._optimizer.state_dict()}
        torch.save({**state, "version": str(self.version)}, Path(directory) / "state.pt")

    def load(self, directory: str) -> None:
        state = torch.load(Path(directory) / "state.pt", weights_only=True)
        self.scores.data.copy_(state["scores"])
        self._optimizer.load_state_dict(state["optimizer"])
        self.version = WeightVersion.parse(state["version"])

    def export(self, directory: str, *, format: str) -> None:
        Path(directory).mkdir()
        precision = "mxfp8" if format == "mxfp8" else "bf16"
        np.save(Path(directory) / "scores.npy", self._weights(precision).detach().numpy())
        (Path(directory) / "format.json").write_text(json.dumps(format))

    def describe(self) -> dict[str, str]:
        return {"engine": "bigram", "precision": self.precision}

    def close(self) -> None: ...


@dataclass(frozen=True)
class Sampled:
    prompt_index: int
    tokens: list[int]
    log_probs: Floats
    finish_reason: str
    version_spans: list[tuple[int, int, str]]


class BigramSampler:
    """Holds what the sync delivers in a ``MemoryEngine`` and samples from that."""

    def __init__(self, scores: torch.Tensor, *, version: str, precision: str):
        self._engine = MemoryEngine({NAME})
        self._engine.storage[NAME] = scores
        self._sink = TransactionalSink(self._engine, version=WeightVersion.parse(version))
        self._precision = precision

    @classmethod
    def boot(cls, path: Path, **settings: Any) -> BigramSampler:
        expected = "mxfp8" if settings["precision"] == "mxfp8" else "hf"
        found = json.loads((path / "format.json").read_text())
        if found != expected:
            raise ValueError(f"{path} holds {found}, expected {expected}")
        scores = torch.from_numpy(np.load(path / "scores.npy"))
        return cls(scores, version=settings["version"], precision=settings["precision"])

    @property
    def version(self) -> str:
        return str(self._sink.version)

    def _scores(self) -> torch.Tensor:
        held = self._engine.read_back(NAME)
        return held if isinstance(held, torch.Tensor) else held.dequantize(torch.float32)

    def generate(
        self,
        prompts: list[list[int]],
        *,
        n: int,
        max_tokens: int,
        temperature: float,
        seed: int,
        stop_token_ids: Sequence[int] = (),
    ) -> list[Sampled]:
        self._sink.require_ready()
        made = torch.Generator().manual_seed(seed)
        scores, out = self._scores(), []
        for index, prompt in enumerate(prompts):
            for _ in range(n):
                out.append(
                    self._one(scores, index, prompt, max_tokens, temperature, made, stop_token_ids)
                )
        return out

    def _one(
        self,
        scores: torch.Tensor,
        index: int,
        prompt: list[int],
        max_tokens: int,
        temperature: float,
        made: torch.Generator,
        stop: Sequence[int],
    ) -> Sampled:
        tokens: list[int] = []
        values: list[float] = []
        while len(tokens) < max_tokens and not (tokens and tokens[-1] in stop):
            row = next_log_probs(scores, [(tokens or prompt)[-1]], temperature)[0]
            token = int(torch.multinomial(row.exp(), 1, generator=made))
            tokens.append(token)
            values.append(float(row[token]))
        reason = "length" if len(tokens) == max_tokens else "stop"
        spans = [(0, len(tokens), self.version)]
        return Sampled(index, tokens, np.array(values, np.float32), reason, spans)

    def sink(self) -> TransactionalSink:
        return self._sink

    def describe(self) -> dict[str, str]:
        return {"engine": "bigram", "precision": self._precision}

    def close(self) -> None: ...
