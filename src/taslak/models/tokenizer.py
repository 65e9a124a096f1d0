"""Text to token ids and back: a thin wrapper around a checkpoint's own tokenizer.

Knows nothing about models, nor when text is safe to show (`engine/text.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from taslak.errors import CheckpointError, OptionError, PromptError, TokenizerMismatch, UserError
from taslak.models.loading import storage

if TYPE_CHECKING:
    from taslak.models.chat_template import ChatTemplate
    from taslak.models.tokenizer_files import TokenizerFiles

# Names given to ids that only fill the embedding matrix up to a round size; no text ever has them.
PADDING = re.compile(r"\[PAD\d*\]|<\|?(pad|unused|extra|dummy|reserved)\w*\|?>", re.IGNORECASE)

NUMBERED = re.compile(r"\[PAD\d+\]")

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


_NO_BYTE = 0xFFFF


def _byte_characters() -> dict[int, int]:
    """GPT-2's spelling of bytes, by code point: those that print stand for themselves, the others for the
    code points from 256 on, in order."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printing]
    shifted = {256 + i: byte for i, byte in enumerate(others)}
    return {byte: byte for byte in printing} | shifted


_BYTES = dict.fromkeys(range(256), _NO_BYTE) | _byte_characters()


@dataclass(frozen=True)
class Difference:
    """The first id that two tokenizers spell differently; None where one has no such token."""

    id: int
    mine: str | None
    theirs: str | None


class Tokenizer:
    """The tokenizer of one checkpoint folder, read when it is first used."""

    def __init__(self, folder: Path, *, name: str | None = None) -> None:
        """`name` is what messages call it; the folder's own name where None."""
        self.name = name or folder.name
        self._folder = folder

    @classmethod
    def from_folder(cls, path: str | Path, *, name: str | None = None) -> Tokenizer:
        """The tokenizer of a Hugging Face folder. Read on first use, which may raise CheckpointError."""
        return cls(Path(path), name=name)

    @cached_property
    def _files(self) -> TokenizerFiles:
        from taslak.models.tokenizer_files import read_tokenizer

        try:
            return read_tokenizer(self._folder)
        except Exception as error:  # damaged JSON, missing files, a package some tokenizer needs
            raise CheckpointError(f"cannot read the tokenizer in {self._folder}: {error}") from error

    @cached_property
    def _template(self) -> ChatTemplate:
        from taslak.models.chat_template import ChatTemplate

        if self._files.template is None:
            raise OptionError(f"{self.name} has no chat template: give the prompt as plain text (--raw)")
        return ChatTemplate(self._files.template, self._files.names)

    def encode(self, text: str, *, add_special: bool = True) -> list[int]:
        """The ids of `text`; with `add_special` also the bos (or eos) the model expects around a text.

        Special tokens spelled out in the text become their ids. Raises PromptError for what is no text.
        """
        require_text(text, "the prompt")
        return list(self._files.fast.encode(text, add_special_tokens=add_special).ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `ids`, special tokens left out unless asked for."""
        return str(self._files.fast.decode(list(ids), skip_special_tokens=skip_special))

    def chat(self, messages: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True) -> list[int]:
        """The ids of a conversation ({"role", "content"} each) in the model's chat template.

        Raises OptionError where the model has none, or the template refuses these messages.
        """
        try:
            text = self._template.render(messages, add_generation_prompt=add_generation_prompt)
        except UserError:
            raise
        except Exception as error:  # templates raise whatever they like through jinja
            raise OptionError(f"the chat template of {self.name} refuses these messages: {error}") from error
        return self.encode(text, add_special=False)  # the template wrote the special tokens itself

    def as_json(self) -> str:
        """What a tokenizer.json of it holds, tokens that other files add included."""
        return str(self._files.fast.to_str())

    @property
    def has_text(self) -> bool:
        """Whether its ids spell anything."""
        return True

    @property
    def has_chat_template(self) -> bool:
        return self._files.template is not None

    @cached_property
    def eos_ids(self) -> tuple[int, ...]:
        """The ids that end a text: of generation_config.json, else config.json, and the tokenizer's own.

        Each source may name none, one or several. Without repeats; () where there are none.
        """
        found: list[int] = []
        for file in ("generation_config.json", "config.json"):
            settings = storage.read_json(self._folder / file)
            value = settings.get("eos_token_id") if isinstance(settings, dict) else None
            if value is not None:
                found += value if isinstance(value, list) else [value]
                break
        own = self._id("eos_token")
        return tuple(dict.fromkeys([*found, *([] if own is None else [own])]))

    @property
    def bos_id(self) -> int | None:
        return self._id("bos_token")

    def token_id(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary, None where it has none."""
        id = self._files.fast.token_to_id(token)
        return None if id is None else int(id)

    def token_bytes(self, id: int) -> bytes:
        """The bytes of text that a token stands for: of a code point, they may be a part. A special token's
        are its spelling; an id that is no token has none."""
        spelled = self._files.fast.id_to_token(id)
        if spelled is None:
            return b""
        if spelled in self._added:
            return str(spelled).encode()
        if self._byte_level:
            with suppress(UnicodeEncodeError):  # a character that spells no byte stands for itself
                return str(spelled).translate(_BYTES).encode("latin-1")
        if byte := _BYTE_TOKEN.fullmatch(spelled):
            return bytes([int(byte[1], 16)])
        return str(spelled).replace("▁", " ").encode()

    @cached_property
    def spellings(self) -> tuple[bytes, ...]:
        """[vocab_size] the `token_bytes` of every id."""
        return tuple(self.token_bytes(id) for id in range(self.vocab_size))

    @cached_property
    def special(self) -> Mapping[int, str]:
        """The ids that no text has, markers of chats among them, and how they are written."""
        added = self._files.fast.get_added_tokens_decoder()
        return {int(id): str(token) for id, token in added.items() if token.special}

    @cached_property
    def leads_with_space(self) -> bool:
        """Whether a text that begins with no space gets one in front, as SentencePiece's often do."""
        return b"".join(map(self.token_bytes, self.encode("a", add_special=False))) == b" a"

    @cached_property
    def _added(self) -> frozenset[str]:
        return frozenset(str(token) for token in self._files.fast.get_added_tokens_decoder().values())

    @cached_property
    def _byte_level(self) -> bool:
        """Whether the vocabulary spells bytes with printable characters (GPT-2's way)."""
        return "ByteLevel" in repr(self._files.fast.decoder)

    def _id(self, name: str) -> int | None:
        """Of a special token with a name."""
        token = self._files.names.get(name)
        return None if token is None else self.token_id(token)

    @cached_property
    def _tokens(self) -> dict[int, str]:
        """Every token's spelling by id."""
        return {int(id): str(token) for token, id in self._files.fast.get_vocab().items()}

    @property
    def _rows(self) -> int | None:
        """Of the model's lm_head; None where nothing says it."""
        settings = storage.read_json(self._folder / "config.json")
        rows = settings.get("vocab_size") if isinstance(settings, dict) else None
        return rows if isinstance(rows, int) else None

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id that is a token; a model's lm_head is often padded beyond it, and some
        files name the padding: "[PAD151700]" is no token. Ids the lm_head has no row for aren't counted."""
        rows = self._rows
        if rows is None:
            rows = max(self._tokens, default=-1) + 1
        spelled = self._files.fast.id_to_token  # downwards, for the list of all tokens takes its time
        tokens = (id for id in range(rows - 1, -1, -1) if not NUMBERED.fullmatch(spelled(id) or "[PAD0]"))
        return next(tokens, -1) + 1

    def first_difference(self, other: Tokenizer) -> Difference | None:
        """The first id the two spell differently, or None where they agree.

        An id that one has as mere padding ("[PAD151700]") and the other lacks is no difference, so
        vocabularies padded to different sizes agree. How text is split isn't compared: a drafter is given
        ids, never text.
        """
        if self._files.fast is other._files.fast:
            return None
        for id in range(max(self.vocab_size, other.vocab_size)):
            mine, theirs = self._tokens.get(id), other._tokens.get(id)
            if mine == theirs or (None in (mine, theirs) and PADDING.fullmatch(mine or theirs or "")):
                continue
            return Difference(id, mine, theirs)
        return None

    def require_same_as(self, draft: Tokenizer) -> None:
        """Raises TokenizerMismatch, naming both and the first id that differs, unless the two agree."""
        if difference := self.first_difference(draft):
            raise TokenizerMismatch(
                f"the tokenizers of {self.name} and {draft.name} differ: the id {difference.id} is "
                f"{_spelled(difference.mine)} in {self.name} and {_spelled(difference.theirs)} in "
                f"{draft.name}. A draft model needs the target's tokenizer: choose one of the same family, "
                "or let it draft across vocabularies (cross_vocab=True, --cross-vocab)"
            )


def require_text(text: str, what: str) -> None:
    """Raise PromptError, naming `what`, for a string that is no text."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes that were no UTF-8 arrive as lone surrogates
        raise PromptError(f"{what} is not valid UTF-8 text at character {error.start}") from error


def _spelled(token: str | None) -> str:
    return "no token" if token is None else repr(token)
