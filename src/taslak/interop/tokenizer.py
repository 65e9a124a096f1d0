"""A tokenizer of transformers as ours; or none: prompts are token ids then, and answers have no text."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from taslak.errors import PromptError, TokenizerMismatch, UserError
from taslak.models.tokenizer import Tokenizer
from taslak.models.tokenizer_files import TokenizerFiles


class WrappedTokenizer(Tokenizer):
    """Encodes and decodes as the given one does, with its chat template and the model's ids of the end."""

    def __init__(self, own: Any | None, *, name: str, eos_ids: Sequence[int], rows: int) -> None:
        """own: of transformers, fast or slow; None = no texts. rows: of the model's lm_head"""
        super().__init__(Path(name), name=name)
        self._own = own
        self._ends = tuple(eos_ids)
        self._head = rows

    @cached_property
    def _files(self) -> TokenizerFiles:
        if self._own is None:
            nothing: Any = _Nothing(self.name)
            return TokenizerFiles(nothing, {}, None)
        template = self._own.chat_template
        if isinstance(template, dict):
            template = template.get("default")
        adapted: Any = _Adapted(self._own)
        return TokenizerFiles(adapted, self._own.special_tokens_map, template)

    @property
    def has_text(self) -> bool:
        return self._own is not None

    def require_same_as(self, draft: Tokenizer) -> None:
        if self._own is None and draft is not self:
            raise TokenizerMismatch(
                f"{self.name} was wrapped without a tokenizer to compare with that of {draft.name}; "
                "give it (from_transformers(model, tokenizer))"
            )
        super().require_same_as(draft)

    @property
    def _rows(self) -> int | None:
        return self._head

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        return self._ends


class _Adapted:
    """What `Tokenizer` asks of a tokenizer of the tokenizers package, of one of transformers."""

    def __init__(self, own: Any) -> None:
        self._own = own
        self._fast = own.backend_tokenizer if own.is_fast else None
        self.decoder = None if self._fast is None else self._fast.decoder

    def encode(self, text: str, add_special_tokens: bool = True) -> Any:
        # by its owner: what it pads and cuts to is set anew in each of its calls
        return SimpleNamespace(ids=self._own.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        if self._fast is not None:
            return str(self._fast.decode(ids, skip_special_tokens=skip_special_tokens))
        return str(
            self._own.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False)
        )

    def get_vocab(self) -> dict[str, int]:
        return dict(self._ids)

    @cached_property
    def _ids(self) -> dict[str, int]:
        return dict(self._own.get_vocab())

    @cached_property
    def _spelled(self) -> dict[int, str]:
        return {id: token for token, id in self._ids.items()}

    def id_to_token(self, id: int) -> str | None:
        return self._spelled.get(id)

    def token_to_id(self, token: str) -> int | None:
        return self._ids.get(token)

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return dict(self._own.added_tokens_decoder)

    def to_str(self) -> str:
        if self._fast is None:
            raise UserError(f"{type(self._own).__name__} has no form that could be read by others")
        return str(self._fast.to_str())


class _Nothing:
    """The same of no tokenizer."""

    decoder = None

    def __init__(self, name: str) -> None:
        self._name = name

    def encode(self, *_: Any, **__: Any) -> Any:
        raise PromptError(
            f"{self._name} was wrapped without a tokenizer: give prompts as token ids, or the tokenizer "
            "(from_transformers(model, tokenizer))"
        )

    def decode(self, *_: Any, **__: Any) -> str:
        return ""

    def get_vocab(self) -> dict[str, int]:
        return {}

    def id_to_token(self, id: int) -> str | None:
        return f"<{id}>"

    def token_to_id(self, _: str) -> int | None:
        return None

    def get_added_tokens_decoder(self) -> dict[int, Any]:
        return {}

    def to_str(self) -> str:
        raise UserError(f"{self._name} was wrapped without a tokenizer, which constraints are made for")
