"""Questions into prompt tokens, completions back into text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mx_rl.config import TaskConfig
from mx_rl.errors import UserError


class PromptRenderer:
    """The model's tokenizer with the task's prompt text and chat settings.

    Raises UserError if the directory has no tokenizer, or no chat template where one is asked for.
    """

    def __init__(self, model: Path, config: TaskConfig) -> None:
        from transformers import AutoTokenizer

        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(model, local_files_only=True)
        except (OSError, ValueError) as error:
            raise UserError(
                f"{model}: no tokenizer that transformers can read ({error})"
            ) from error
        if config.chat and not self._tokenizer.chat_template:
            raise UserError(
                f"{model}: the tokenizer has no chat template; set task.chat=false for plain text"
            )
        self._config = config

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        token = self._tokenizer.eos_token_id
        return () if token is None else (int(token),)

    def render(self, question: str) -> tuple[int, ...]:
        """The prompt's token ids, up to where the model's answer begins."""
        text = self._config.prompt.replace("{question}", question)
        if self._config.chat:
            messages = [{"role": "user", "content": text}]
            if self._config.system is not None:
                messages.insert(0, {"role": "system", "content": self._config.system})
            text = self._tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True
            )
            # The template has written the special tokens already.
            ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        else:
            ids = self._tokenizer(text)["input_ids"]
        return tuple(int(token) for token in ids)

    def text(self, tokens: Sequence[int]) -> str:
        """The completion as text, without special tokens."""
        decoded: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return decoded
