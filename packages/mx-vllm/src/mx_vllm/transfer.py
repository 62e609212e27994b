"""The weight-transfer engine ``mx``: live updates on vLLM's layerwise reload, on the CPU.

vLLM's worker drives start / update / finish. An update carries whole modules: the reload keeps the
tensors it is given until a module is complete, then loads, processes and copies into the original
storage. Handing over whole modules is what makes a reused receive buffer safe.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.model_loader.reload import (
    finalize_layerwise_reload,
    initialize_layerwise_reload,
)
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info

from mx_vllm.methods import is_tied


@dataclass(frozen=True, slots=True)
class Part:
    """Rows for one parameter of a module; ``shard`` as vLLM's loaders name it, or None."""

    parameter: str
    shard: str | int | None
    tensor: Tensor


@dataclass
class InitInfo(WeightTransferInitInfo):
    """Nothing to set up."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """Everything that ``module`` consists of."""

    module: str = ""
    parts: list[Part] = field(default_factory=list)


class MxWeightTransferEngine(WeightTransferEngine[InitInfo, UpdateInfo]):
    """In-process delivery of whole modules."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Nothing to connect to: the tensors are in this process."""

    def start_weight_update(self) -> None:
        """Raises RuntimeError if an earlier update left a module half loaded."""
        halves = [n for n, m in self.model.named_modules() if get_layerwise_info(m).can_load()]
        if halves:
            raise RuntimeError(
                f"an earlier weight update left {', '.join(halves[:4])} open ({len(halves)} "
                "modules); boot the sampler again"
            )
        for module in self.model.modules():
            if is_tied(module):
                # The tied output layer had the embedding's weight when vLLM recorded what a reload
                # restores. It has none now; waiting for it would only warn.
                get_layerwise_info(module).restore_metadata = ({}, {})
        self._modules = dict(self.model.named_modules())
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, without its ``torch.accelerator.synchronize``: it raises on CPUs."""
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Load one module. When this returns, vLLM holds none of the tensors.

        Raises RuntimeError if the module is not complete then.
        """
        module = self._modules[update_info.module]
        for part in update_info.parts:
            parameter = getattr(module, part.parameter)
            if part.shard is None:
                parameter.weight_loader(parameter, part.tensor)
            else:
                parameter.weight_loader(parameter, part.tensor, part.shard)
        info = get_layerwise_info(module)
        if info.can_load():
            raise RuntimeError(
                f"{update_info.module}: vLLM waits for more than the {len(update_info.parts)} "
                f"parts that were delivered ({info.load_numel} of {info.load_numel_total} elements)"
            )

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing to release."""
