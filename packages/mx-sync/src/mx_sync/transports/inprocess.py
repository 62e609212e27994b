"""Within one process: one plain buffer, kept from sync to sync so that its pages stay warm."""

from __future__ import annotations

from typing import Final

import torch
from torch import Tensor


class LocalSender:
    """A ``Sender`` with a single buffer in ordinary memory."""

    slots: Final = 1

    def __init__(self) -> None:
        self._buffer = torch.empty(0, dtype=torch.uint8)

    def buffer(self, nbytes: int) -> Tensor:
        """The one buffer, grown if need be."""
        if self._buffer.numel() < nbytes:
            self._buffer = torch.empty(nbytes, dtype=torch.uint8)
        return self._buffer
