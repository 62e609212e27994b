"""One seed per completion, so that a completion does not depend on what it is batched with."""

from __future__ import annotations

import hashlib


def derive(seed: int, prompt_index: int, sample_index: int) -> int:
    """A 63-bit seed from three integers, each at most 64 bits and signed.

    Hashed, because sums and products of small integers collide.
    """
    text = b"".join(
        v.to_bytes(9, "little", signed=True) for v in (seed, prompt_index, sample_index)
    )
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1
