import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import random_sequences, reinforce

RESUME = """
import sys
from tiny import random_sequences, reinforce
from mx_megatron.learner import MegatronLearner
path, state, out, precision = sys.argv[1:]
learner = MegatronLearner.from_checkpoint(
    path, precision=precision, learning_rate=1e-3, run="test", seed=0, threads=2)
learner.load(state)
sequences = random_sequences(8, seed=12)
learner.step(sequences, reinforce(sequences), temperature=1.0, micro_batch_tokens=64)
learner.save(out)
learner.close()
"""


def train(learner: Any, seed: int) -> None:
    sequences = random_sequences(8, seed=seed)
    learner.step(sequences, reinforce(sequences), temperature=1.0, micro_batch_tokens=64)


def differences(a: Path, b: Path) -> list[str]:
    found = []
    for file in ("weights.safetensors", "optimizer.safetensors"):
        left, right = load_file(a / file), load_file(b / file)
        found += [
            name
            for name in left.keys() | right.keys()
            if name not in left
            or name not in right
            or not torch.equal(left[name].view(torch.uint8), right[name].view(torch.uint8))
        ]
    if (a / "state.json").read_text() != (b / "state.json").read_text():
        found.append("state.json")
    return sorted(found)


@pytest.mark.parametrize("precision", ["bf16", "mxfp8"])
def test_a_run_resumed_in_a_new_process_continues_bit_for_bit(
    learner_of: Any, tmp_path: Path, precision: str
) -> None:
    learner = learner_of(precision=precision)
    train(learner, 11)
    learner.save(tmp_path / "after1")
    train(learner, 12)
    learner.save(tmp_path / "after2")
    arguments = [str(learner._path), str(tmp_path / "after1"), str(tmp_path / "resumed"), precision]
    subprocess.run(
        [sys.executable, "-c", RESUME, *arguments],
        check=True,
        cwd=Path(__file__).parent,
        timeout=300,
    )
    assert differences(tmp_path / "after2", tmp_path / "resumed") == []
    assert len(differences(tmp_path / "after1", tmp_path / "resumed")) > 100


def test_loading_rewinds_a_learner_that_has_gone_on(learner_of: Any, tmp_path: Path) -> None:
    learner = learner_of()
    learner.save(tmp_path / "start")
    train(learner, 11)
    learner.save(tmp_path / "after1")
    learner.load(tmp_path / "start")
    assert str(learner.version) == "test@0"
    train(learner, 11)
    learner.save(tmp_path / "again")
    assert differences(tmp_path / "after1", tmp_path / "again") == []


def test_a_loaded_learner_exports_what_the_saved_one_exported(
    learner_of: Any, tmp_path: Path
) -> None:
    learner, other = learner_of(), learner_of()
    train(learner, 11)
    learner.save(tmp_path / "s")
    other.load(tmp_path / "s")
    assert other.source().manifest() == learner.source().manifest()


def test_a_state_of_other_settings_is_refused_with_every_difference(
    learner_of: Any, tmp_path: Path
) -> None:
    learner_of().save(tmp_path / "s")
    other = learner_of(precision="bf16", learning_rate=5e-4)
    with pytest.raises(ValueError) as caught:
        other.load(tmp_path / "s")
    assert "recipe.precision is 'mxfp8' in the state, 'bf16' here" in str(caught.value)
    assert "optimizer.learning_rate is 0.001 in the state, 0.0005 here" in str(caught.value)


def test_resuming_with_other_arithmetic_is_said_in_the_log(
    learner_of: Any, tmp_path: Path, caplog: Any
) -> None:
    learner = learner_of()
    learner.save(tmp_path / "s")
    learner.load(tmp_path / "s")
    assert "bit for bit" not in caplog.text
    document = json.loads((tmp_path / "s" / "state.json").read_text())
    document["arithmetic"]["torch_threads"] = "77"
    (tmp_path / "s" / "state.json").write_text(json.dumps(document))
    learner.load(tmp_path / "s")
    assert "not bit for bit: arithmetic.torch_threads is '77' in the state" in caplog.text


def test_a_path_without_a_state_is_refused(learner_of: Any, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"holds no learner state: state\.json"):
        learner_of().load(tmp_path)


def test_a_state_of_another_schema_is_refused(learner_of: Any, tmp_path: Path) -> None:
    learner = learner_of()
    learner.save(tmp_path / "s")
    document = json.loads((tmp_path / "s" / "state.json").read_text())
    (tmp_path / "s" / "state.json").write_text(json.dumps(document | {"schema": "other/9"}))
    with pytest.raises(ValueError, match="not of schema mx-megatron/state/1"):
        learner.load(tmp_path / "s")


def test_saving_over_a_state_replaces_it_and_leaves_nothing_else(
    learner_of: Any, tmp_path: Path
) -> None:
    learner = learner_of()
    learner.save(tmp_path / "here" / "s")
    train(learner, 11)
    learner.save(tmp_path / "here" / "s")
    learner.load(tmp_path / "here" / "s")
    assert str(learner.version) == "test@1"
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["s"]


def test_a_save_that_fails_leaves_the_earlier_state_and_no_rubbish(
    learner_of: Any, tmp_path: Path
) -> None:
    learner = learner_of()
    learner.save(tmp_path / "here" / "s")
    train(learner, 11)
    learner._identity = {"model": {"unwritable": object()}}
    with pytest.raises(TypeError):
        learner.save(tmp_path / "here" / "s")
    assert [path.name for path in (tmp_path / "here").iterdir()] == ["s"]
    assert json.loads((tmp_path / "here" / "s" / "state.json").read_text())["version"]["step"] == 0
