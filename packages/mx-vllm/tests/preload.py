"""What the fork server imports before it forks engine processes. Nothing is computed here."""

import mx_vllm.sampler
import mx_vllm.sink  # noqa: F401
