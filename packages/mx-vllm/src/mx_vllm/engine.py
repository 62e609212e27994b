"""``EngineWeights`` over a live vLLM ``LLM`` in this process."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from mx_quant import MXTensor
from mx_sync import Manifest, WeightVersion
from mx_vllm.layout import parts_of, read_back
from mx_vllm.names import Place, canonical_places
from mx_vllm.transfer import Part


@contextmanager
def one_thread() -> Iterator[None]:
    """Move memory on one thread.

    One core reaches most of the memory bandwidth, and the many small parallel copies of an update
    would each wait for an OpenMP team: on shared cores that took ten times as long.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class VllmWeights:
    """Places, finalizes and reads back the weights of ``llm``.

    A module is handed to vLLM when the last of its tensors arrives. What arrived before is copied;
    the last, and every module with one tensor, is loaded straight from the transfer buffer and is
    in the live parameters before ``place`` returns.
    """

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._worker = live_worker(llm)
        self.model: nn.Module = self._worker.model_runner.model
        self._modules = dict(self.model.named_modules())
        self.places = canonical_places(self.model)
        self._in_module: dict[str, list[Place]] = {}
        for place in self.places.values():
            self._in_module.setdefault(place.module, []).append(place)
        self._needs = {
            module: {place.name for place in places}
            for module, places in self._in_module.items()
            if not any(place.tied for place in places)
        }
        self._staged: dict[str, dict[str, list[Part]]] = {}
        self._done: set[str] = set()
        self._decoded: dict[str, MXTensor | Tensor | ValueError] | None = None

    def expected_names(self) -> AbstractSet[str]:
        return self.places.keys()

    def open(self, manifest: Manifest) -> None:
        """Raises ValueError, before anything changes, for every tensor in another form."""
        problems = [p for name in manifest.targets if (p := self._objection(manifest, name))]
        if problems:
            raise ValueError(
                f"version {manifest.version} does not fit the live model: "
                f"{'; '.join(problems[:8])}"
                f"{f' and {len(problems) - 8} more' if len(problems) > 8 else ''}"
            )
        self._staged, self._done = {}, set()
        self._llm.start_weight_update()

    def place(self, name: str, tensor: MXTensor | Tensor) -> None:
        place = self.places[name]
        parts = [Part(p, place.shard, t) for p, t in parts_of(place, tensor)]
        staged = self._staged.setdefault(place.module, {})
        if staged.keys() | {name} != self._needs[place.module]:
            with one_thread():
                staged[name] = [Part(p.parameter, p.shard, p.tensor.clone()) for p in parts]
            return
        whole = [part for earlier in staged.values() for part in earlier] + parts
        with one_thread():
            self._llm.update_weights({"update_info": {"module": place.module, "parts": whole}})
        del self._staged[place.module]
        self._done.add(place.module)

    def finalize(self, version: WeightVersion) -> None:
        """Raises RuntimeError, naming the modules, if some did not get all of their tensors."""
        missing = sorted(self._needs.keys() - self._done)
        if missing:
            raise RuntimeError(f"version {version} left modules without weights: {missing[:8]}")
        self._llm.finish_weight_update()
        self._decoded = {}

    def read_back(self, name: str) -> MXTensor | Tensor:
        place = self.places[name]
        decoded = self._decoded
        if decoded is None or name not in decoded:
            with one_thread():
                decoded = read_back(self._in_module[place.module], self._modules[place.module])
        found = decoded.pop(name)
        if self._decoded is not None:
            # Between finalize and publish nothing writes weights: the other parts of a fused
            # module may wait, once each, for their own call.
            self._decoded = decoded
        if isinstance(found, ValueError):
            raise found
        return found

    def publish(self, version: WeightVersion) -> None:
        """Raises RuntimeError if vLLM keeps its prefix cache or another label."""
        self._decoded = None
        if not self._llm.reset_prefix_cache():
            raise RuntimeError(
                f"vLLM did not drop its prefix cache for version {version}: requests are running; "
                "sync when none is"
            )
        self._llm.update_weight_version(str(version))
        found = self._llm.get_weight_version()
        if found != str(version):
            raise RuntimeError(f"vLLM is labelled {found!r} after publishing {version}")

    def discard(self) -> None:
        self._staged, self._done, self._decoded = {}, set(), None
        _abandon(self._worker)

    def _objection(self, manifest: Manifest, name: str) -> str | None:
        """Why a manifest's tensor does not fit, or None."""
        spec, place = manifest.spec(name), self.places[name]
        tied = manifest.targets[name] != name
        if tied != place.tied:
            return f"{name} is {'an alias' if tied else 'separate'} there and not here"
        if spec.shape != place.shape:
            return f"{name} is {spec.shape}, not {place.shape}"
        if spec.grid != place.grid:
            there, here = (g.id if g else "bf16" for g in (spec.grid, place.grid))
            return f"{name} is {there} on the learner, {here} here"
        return None if place.grid or spec.dtype == "bf16" else f"{name} is {spec.dtype}, not bf16"


def live_worker(llm: Any) -> Any:
    """The worker of an in-process ``LLM``, out of the wrapper that its executor keeps it in."""
    return llm.collective_rpc(lambda wrapper: getattr(wrapper, "worker", wrapper))[0]


def _abandon(worker: Any) -> None:
    """Close an update wherever it stands: modules that got nothing keep what they had."""
    from vllm.config import set_current_vllm_config
    from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

    engine = worker.weight_transfer_engine
    if any(get_layerwise_info(module).can_load() for module in engine.model.modules()):
        with set_current_vllm_config(worker.vllm_config):
            engine.finish_weight_update()
    worker._weight_update_active = False
