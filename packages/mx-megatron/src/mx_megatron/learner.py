"""The learner: a Hugging Face checkpoint on Megatron-Core, trained and exported on one grid."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mx_megatron import compat, state
from mx_megatron.architecture import parse_architecture, read_config
from mx_megatron.batching import MicroBatch, TokenSequence, check_sequences, plan
from mx_megatron.checkpoint import load_parameters
from mx_megatron.emulation import EmulatedWeights, prepare
from mx_megatron.export import check_format, export
from mx_megatron.mcore import model_parallel_cuda_manual_seed
from mx_megatron.model import build_model, check_grid_fits
from mx_megatron.names import ParameterMap
from mx_megatron.optim import AdamSettings, NonFiniteStep, Optimizer
from mx_megatron.recipe import Recipe, check_precision
from mx_megatron.scoring import check_temperature, forward_log_probs
from mx_megatron.source import LearnerSource
from mx_megatron.world import World
from mx_quant import Grid, MXTensor
from mx_sync.version import WeightVersion

log = logging.getLogger(__name__)

LossFn = Callable[[list[Tensor], list[int]], tuple[Tensor, dict[str, float]]]

_OWN_KEYS = frozenset({"loss", "grad_norm", "tokens", "micro_batches"})


class MegatronLearner:
    """Policy-gradient training of one model in one process; see ``from_checkpoint``.

    ``version`` is the run and the number of optimizer steps behind the current weights.
    """

    def __init__(
        self, path: Path, recipe: Recipe, settings: AdamSettings, *, run: str, seed: int
    ) -> None:
        self._path = path
        self._config = read_config(path)
        self._arch = parse_architecture(self._config, where=str(path / "config.json"))
        self._recipe = recipe
        self.version = WeightVersion(run, 0)
        check_grid_fits(self._arch, recipe)
        self._backend, self._backend_reason = compat.choose_backend()
        self._world = World.enter()
        try:
            self._build(settings, seed)
        except BaseException:
            self._world.leave()
            raise
        log.info("learner ready: %s", self.describe())

    @classmethod
    def from_checkpoint(
        cls,
        path: str | os.PathLike[str],
        *,
        precision: str,
        layers: str = "all",
        learning_rate: float,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        clip_grad: float = 1.0,
        run: str,
        seed: int,
        threads: int | None = None,
    ) -> MegatronLearner:
        """A learner that starts from a Hugging Face checkpoint directory (Llama or Qwen3, dense).

        ``precision``: "mxfp8" or "bf16". ``layers``: which decoder layers the grid applies to,
        "all", "none", "fraction:X" or "skip:FIRST,LAST" (see ``Recipe``). AdamW with a constant
        learning rate; ``clip_grad`` is the largest global gradient norm (0: no clipping). ``run``
        names the weights' versions. ``threads`` sets torch's thread count for the whole process.

        Raises FileNotFoundError or ValueError that names the path, tensor or setting at fault.
        """
        if threads is not None:
            torch.set_num_threads(threads)
        settings = AdamSettings(
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            betas=(betas[0], betas[1]),
            eps=eps,
            clip_grad=clip_grad,
        )
        return cls(Path(path), Recipe(precision, layers), settings, run=run, seed=seed)

    def log_probs(
        self,
        sequences: Sequence[TokenSequence],
        *,
        temperature: float,
        micro_batch_tokens: int,
        precision: str | None = None,
    ) -> list[NDArray[np.float32]]:
        """Log-probabilities of each sequence's completion tokens, float32, natural, at T.

        ``precision`` scores the current weights in another precision than the learner trains in;
        the layer selection stays the learner's.
        """
        check_temperature(temperature)
        check_sequences(sequences, self._arch)
        batches = plan(sequences, micro_batch_tokens=micro_batch_tokens, device=self._device)
        out = [np.empty(0, dtype=np.float32) for _ in sequences]
        with torch.no_grad(), self._scoring_in(precision):
            for batch in batches:
                scores = self._forward(batch, temperature).cpu().split(batch.counts)
                for index, values in zip(batch.indices, scores, strict=True):
                    out[index] = values.numpy().copy()
        return out

    def step(
        self,
        sequences: Sequence[TokenSequence],
        loss_fn: LossFn,
        *,
        temperature: float,
        micro_batch_tokens: int,
    ) -> dict[str, float]:
        """One optimizer step; returns loss, grad_norm, tokens, micro_batches, seconds and metrics.

        ``loss_fn(log_probs, indices)`` gets one float32 tensor per sequence of a micro-batch, with
        gradients, and the sequences' positions in ``sequences``. It returns a scalar and metrics;
        both are summed over micro-batches, so it must normalise by the whole batch itself.

        Raises NonFiniteStep, before any weight changes, when a loss or the gradient is not finite.
        """
        check_temperature(temperature)
        check_sequences(sequences, self._arch)
        batches = plan(sequences, micro_batch_tokens=micro_batch_tokens, device=self._device)
        if not batches:
            raise ValueError("no sequence has a completion token: there is nothing to learn from")
        seconds: defaultdict[str, float] = defaultdict(float)
        metrics: defaultdict[str, float] = defaultdict(float)
        loss = 0.0
        self._optimizer.zero_grad()
        for batch in batches:
            loss += self._backward(batch, loss_fn, temperature, metrics, seconds)
        start = time.perf_counter()
        grad_norm = self._optimizer.step()
        seconds["optimizer_seconds"] = time.perf_counter() - start
        self.version = WeightVersion(self.version.run, self.version.step + 1)
        self._weights.refresh()
        seconds["quantize_seconds"] = self._weights.refresh_seconds
        return {
            **metrics,
            **seconds,
            "loss": loss,
            "grad_norm": grad_norm,
            "tokens": float(sum(sum(batch.counts) for batch in batches)),
            "micro_batches": float(len(batches)),
        }

    def source(self, *, precision: str | None = None) -> LearnerSource:
        """The current weights for a sync: the learner's own forward bytes.

        ``precision`` other than the learner's: "bf16" gives the bf16 parameters, "mxfp8" under a
        bf16 learner quantizes them once, here, on the learner's layer selection.
        """
        chosen = check_precision(self._recipe.precision if precision is None else precision)
        if chosen == "mxfp8":
            check_grid_fits(self._arch, Recipe("mxfp8", self._recipe.layers))
        return LearnerSource(
            version=self.version,
            current=lambda: self.version,
            arch=self._arch,
            read=lambda entry: self._exported(entry, chosen),
        )

    def export(self, directory: str | os.PathLike[str], *, format: str) -> None:
        """Writes a checkpoint: "hf" (bf16, loads in transformers) or "mxfp8" (loads in vLLM)."""
        precision = "bf16" if check_format(format) == "hf" else "mxfp8"
        export(
            directory,
            self.source(precision=precision),
            original=self._path,
            config=self._config,
        )

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Writes weights, optimizer, RNG and version: a resumed run continues bit for bit."""
        state.save_state(
            directory,
            parameters=self._parameters,
            optimizer=self._optimizer,
            identity=self._identity,
            version=self.version,
        )

    def load(self, directory: str | os.PathLike[str]) -> None:
        """Continues from what ``save`` wrote, its version included. Strict: see ``load_state``."""
        self.version = state.load_state(
            directory,
            parameters=self._parameters,
            optimizer=self._optimizer,
            identity=self._identity,
        )
        self._weights.refresh()

    def describe(self) -> dict[str, str]:
        """Who computes here, for logs and run summaries."""
        num_layers = self._arch.num_layers
        on_grid = sum(
            self._recipe.grid(i, num_layers=num_layers) is not None for i in range(num_layers)
        )
        return {
            "engine": "megatron-core",
            "megatron_core": compat.megatron_label(),
            "model": self._arch.name,
            "backend": f"{self._backend} ({self._backend_reason})",
            "precision": self._recipe.precision,
            "layers": f"{self._recipe.layers} ({on_grid} of {num_layers} on the grid)",
            **compat.arithmetic(),
        }

    def close(self) -> None:
        """Leaves the process group; the learner cannot be used afterwards. May be called twice."""
        self._world.leave()

    def _build(self, settings: AdamSettings, seed: int) -> None:
        model_parallel_cuda_manual_seed(seed)
        cuda = torch.cuda.is_available()
        self._device = (
            torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
        )
        model = build_model(self._arch, self._recipe, backend=self._backend).to(self._device)
        self._parameters: dict[str, torch.nn.Parameter] = dict(model.named_parameters())
        load_parameters(self._path, self._arch, self._parameters)
        self._optimizer = Optimizer(model, settings)
        # The masters start from the checkpoint itself, not from parameters rounded to bf16 or FP8.
        masters = {
            name: self._optimizer.slot(parameter)[0].view(parameter.shape)
            for name, parameter in self._parameters.items()
        }
        load_parameters(self._path, self._arch, masters)
        self._identity = state.identity(self._arch, self._recipe, self._optimizer)
        self._weights: Any
        if self._backend == "te":
            from mx_megatron.te import TEWeights

            self._weights = TEWeights(model)
        else:
            self._weights = EmulatedWeights.of(model, grid_of=self._grids(None))

    def _scoring_in(self, precision: str | None) -> contextlib.AbstractContextManager[None]:
        if precision in (None, self._recipe.precision):
            return contextlib.nullcontext()
        context: contextlib.AbstractContextManager[None] = self._weights.scoring_on(
            self._grids(precision)
        )
        return context

    def _grids(self, precision: str | None) -> Callable[[int], Grid | None]:
        chosen = check_precision(self._recipe.precision if precision is None else precision)
        check_grid_fits(self._arch, Recipe(chosen, self._recipe.layers))
        return lambda layer: self._recipe.grid(
            layer, num_layers=self._arch.num_layers, precision=chosen
        )

    def _forward(self, batch: MicroBatch, temperature: float) -> Tensor:
        return forward_log_probs(
            self._optimizer.ddp, batch, project=self._weights.project, temperature=temperature
        )

    def _backward(
        self,
        batch: MicroBatch,
        loss_fn: LossFn,
        temperature: float,
        metrics: defaultdict[str, float],
        seconds: defaultdict[str, float],
    ) -> float:
        start = time.perf_counter()
        scores = list(self._forward(batch, temperature).split(batch.counts))
        loss, more = loss_fn(scores, list(batch.indices))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise NonFiniteStep(
                f"loss is {value} in the micro-batch of sequences {list(batch.indices)[:8]} "
                f"(version {self.version}): no weight was changed. Look for extreme rewards, "
                "advantages or ratios in these sequences"
            )
        taken = _OWN_KEYS & more.keys()
        if taken:
            raise ValueError(f"loss_fn's metrics use reserved names: {', '.join(sorted(taken))}")
        for key, amount in more.items():
            metrics[key] += amount
        middle = time.perf_counter()
        loss.backward()
        seconds["forward_seconds"] += middle - start
        seconds["backward_seconds"] += time.perf_counter() - middle
        return value

    def _exported(self, entry: ParameterMap, precision: str) -> MXTensor | Tensor:
        parameter = self._parameters[entry.name].detach()
        if entry.layer is None or not entry.linear or precision == "bf16":
            return parameter
        if precision == self._recipe.precision:
            live: MXTensor | Tensor = self._weights.read(entry.name)
            return live
        grid = self._recipe.grid(entry.layer, num_layers=self._arch.num_layers, precision=precision)
        if grid is None:
            return parameter
        return prepare(parameter, grid=grid, backward=False).rowwise or parameter
