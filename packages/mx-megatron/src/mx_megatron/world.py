"""The process group that Megatron-Core needs: one process, no port, no file."""

from __future__ import annotations

import torch.distributed as dist

from mx_megatron.mcore import parallel_state


class World:
    """A gloo world of one process, shared by every learner of the process.

    The store is a hash table in memory, so nothing listens and nothing can collide. Tensor,
    pipeline and data parallelism are all of size 1; a larger world needs only another store, rank
    and sizes here, and row shards in ``layout``.
    """

    _users = 0

    def __init__(self) -> None:
        self._open = False

    @classmethod
    def enter(cls) -> World:
        """Starts the world, or joins the one that this class started.

        Raises RuntimeError if somebody else has initialised torch.distributed.
        """
        if cls._users == 0:
            if dist.is_initialized():
                raise RuntimeError(
                    "torch.distributed is already initialised in this process, and not by the "
                    "learner; run the learner in a process of its own, or destroy that process "
                    "group first"
                )
            store = dist.HashStore()  # type: ignore[attr-defined]
            dist.init_process_group("gloo", store=store, rank=0, world_size=1)
            try:
                parallel_state.initialize_model_parallel()
            except BaseException:
                dist.destroy_process_group()
                raise
        cls._users += 1
        world = cls()
        world._open = True
        return world

    def leave(self) -> None:
        """Leaves; the last user to leave ends the world. Leaving twice is allowed."""
        if not self._open:
            return
        self._open = False
        World._users -= 1
        if World._users == 0:
            parallel_state.destroy_model_parallel()
            dist.destroy_process_group()
