"""One weight's journey on the real engines: Megatron-Core, shared memory, vLLM, and back."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest
import torch
from processes import Sequence, sampler

from mx_megatron import MegatronLearner
from mx_rl.models import prepare_model
from mx_sync import (
    ReadBackMismatch,
    ShmSender,
    TransportError,
    sync,
)

pytestmark = pytest.mark.engine

BUCKET_BYTES = 1 << 17


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module", params=["tiny-llama", "tiny-qwen3"])
def model(request: pytest.FixtureRequest, models: Path) -> Path:
    return prepare_model(request.param, cache=models)


def sequences() -> list[Sequence]:
    generator = np.random.default_rng(3)
    return [
        Sequence(
            generator.integers(3, 500, size=length).tolist(),
            generator.integers(3, 500, size=12).tolist(),
        )
        for length in (1, 5, 17, 30)
    ]


def learner(path: Path, precision: str) -> MegatronLearner:
    return MegatronLearner.from_checkpoint(
        path, precision=precision, learning_rate=1e-3, run="journey", seed=0, threads=2
    )


def train(live: MegatronLearner, steps: int = 1) -> None:
    def loss(log_probs: list[torch.Tensor], _: list[int]) -> tuple[torch.Tensor, dict[str, float]]:
        return -torch.cat(log_probs).mean(), {}

    for _ in range(steps):
        live.step(sequences(), loss, temperature=1.0, micro_batch_tokens=4096)


def assert_bit_equal(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    assert [a.tobytes() for a in one] == [b.tobytes() for b in other]


@pytest.mark.parametrize("precision", ["mxfp8", "bf16"])
def test_a_synced_sampler_equals_a_fresh_one_on_the_same_weights(
    model: Path, precision: str, tmp_path: Path
) -> None:
    form = {"mxfp8": "mxfp8", "bf16": "hf"}[precision]
    live = learner(model, precision)
    try:
        live.export(tmp_path / "before", format=form)
        with (
            sampler(tmp_path / "before", precision=precision, version="journey@0") as peer,
            ShmSender() as sender,
        ):
            before = peer.score(sequences())
            train(live, steps=2)
            report = sync(live.source(), [peer.client(sender)], bucket_bytes=BUCKET_BYTES)
            after = peer.score(sequences())
            spans = peer.ask("generate", [[5, 6, 7]], n=1, max_tokens=4, temperature=1.0, seed=1)[
                0
            ].version_spans
        manifest = live.source().manifest()
        assert report.bytes_equal
        assert report.checked == len(manifest.targets)
        assert report.buckets > 1
        assert spans == [(0, 4, "journey@2")]
        live.export(tmp_path / "after", format=form)
        with sampler(tmp_path / "after", precision=precision, version="journey@2") as fresh:
            assert_bit_equal(after, fresh.score(sequences()))
        # Not by standing still: two steps at this learning rate move every log-probability.
        assert max(np.abs(a - b).max() for a, b in zip(before, after, strict=True)) > 1e-2
        # Emulated W8A8 on both sides; the rest is two engines' BF16 arithmetic.
        scored = live.log_probs(sequences(), temperature=1.0, micro_batch_tokens=4096)
        difference = np.concatenate(
            [np.abs(a - b) for a, b in zip(scored, after, strict=True)]
        ).mean()
        assert difference < 0.1
    finally:
        live.close()


def test_a_flipped_byte_is_named_and_silences_the_sampler_until_a_whole_sync(
    models: Path, tmp_path: Path
) -> None:
    name = "model.layers.1.mlp.gate_proj.weight"
    live = learner(prepare_model("tiny-qwen3", cache=models), "mxfp8")
    try:
        live.export(tmp_path / "boot", format="mxfp8")
        with (
            sampler(tmp_path / "boot", precision="mxfp8", version="journey@0") as peer,
            ShmSender() as sender,
        ):
            client = peer.client(sender)
            train(live)
            peer.ask("flip", name)
            with pytest.raises(ReadBackMismatch, match=name) as caught:
                sync(live.source(), [client], bucket_bytes=BUCKET_BYTES)
            assert list(caught.value.names) == [name]
            with pytest.raises(RuntimeError, match=r"SamplerPoisoned[\s\S]*journey@0"):
                peer.ask("generate", [[5, 6]], n=1, max_tokens=2, temperature=1.0, seed=1)
            assert sync(live.source(), [client], bucket_bytes=BUCKET_BYTES).bytes_equal
            peer.ask("generate", [[5, 6]], n=1, max_tokens=2, temperature=1.0, seed=1)
            assert peer.ask("version") == "journey@1"
    finally:
        live.close()


def test_a_killed_sampler_is_reported_and_leaves_no_shared_memory(
    models: Path, tmp_path: Path
) -> None:
    before = set(os.listdir("/dev/shm"))
    live = learner(prepare_model("tiny-qwen3", cache=models), "mxfp8")
    try:
        live.export(tmp_path / "boot", format="mxfp8")
        with (
            sampler(tmp_path / "boot", precision="mxfp8", version="journey@0") as peer,
            ShmSender() as sender,
        ):
            client = peer.client(sender)
            client.begin(live.source().manifest())
            os.kill(peer.process.pid, signal.SIGKILL)
            peer.process.join()
            with pytest.raises(TransportError, match="restart it"):
                sync(live.source(), [client], bucket_bytes=BUCKET_BYTES)
    finally:
        live.close()
    left = {n for n in set(os.listdir("/dev/shm")) - before if n.startswith("mx-sync")}
    assert not left
