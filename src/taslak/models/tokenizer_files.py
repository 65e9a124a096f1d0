"""What a checkpoint's tokenizer files say.

tokenizer.json is read by `tokenizers` itself, and tokenizer_config.json the way transformers (5) reads it:
importing that package takes longer than loading a model. It is used where there is no tokenizer.json.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from tokenizers import AddedToken
from tokenizers import Tokenizer as Fast

from taslak.models.loading import storage

NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")

_PATCHED = ("fix_mistral_regex", "fast_tokenizer_files")
"""Settings by which transformers changes or replaces tokenizer.json: too rare to be told twice."""


@dataclass(frozen=True)
class TokenizerFiles:
    """`names`: of the special tokens that have one ("bos_token": "<s>"); `template`: None = no chats.

    Models whose files spell the same tokens share one `fast`: reading it is most of what loading a draft
    model takes.
    """

    fast: Fast
    names: Mapping[str, str]
    template: str | None


_LIVING: WeakValueDictionary[bytes, TokenizerFiles] = WeakValueDictionary()
"""By everything that `fast` is made from."""


def read_tokenizer(folder: Path) -> TokenizerFiles:
    """Raises whatever the file readers do; a message of theirs names what is wrong."""
    config = storage.read_json(folder / "tokenizer_config.json")
    config = config if isinstance(config, dict) else {}
    if not (folder / "tokenizer.json").is_file() or any(config.get(key) for key in _PATCHED):
        return _by_transformers(folder)
    if "added_tokens_decoder" not in config:  # older files say it in one of its own
        named = storage.read_json(folder / "special_tokens_map.json")
        config |= named if isinstance(named, dict) else {}
    names, extra = _special(config)
    stored = _stored_tokens(folder, config, names, extra)
    text = (folder / "tokenizer.json").read_bytes()
    splits = bool(config.get("split_special_tokens"))
    key = hashlib.sha256(text + repr((splits, stored, names, extra)).encode()).digest()
    living = _LIVING.get(key)
    if living is None:
        fast = Fast.from_buffer(text)
        fast.no_truncation()
        fast.no_padding()
        fast.encode_special_tokens = splits
        _add_tokens(fast, stored, names, extra)
    else:
        fast = living.fast
    named = {name: str(token) for name, token in names.items()}
    files = _LIVING[key] = TokenizerFiles(fast, named, _template(folder, config))
    return files


def _special(config: Mapping[str, Any]) -> tuple[dict[str, AddedToken], list[AddedToken]]:
    """The special tokens with a name, the usual ones first, and those without."""
    extra = config.get("extra_special_tokens") or config.get("additional_special_tokens") or []
    further = {key: value for key, value in config.items() if key.endswith("_token") and key not in NAMES}
    if isinstance(extra, dict):
        further, extra = further | extra, []
    named = {name: config.get(name) for name in NAMES} | further
    names = {name: token for name, value in named.items() if (token := _token(value)) is not None}
    return names, [token for value in extra if (token := _token(value)) is not None]


def _token(value: Any) -> AddedToken | None:
    """A token spelled out, or written as a dict of its properties; None for anything else."""
    if isinstance(value, str):
        return AddedToken(value, special=True)
    if isinstance(value, dict) and "content" in value:
        properties = {key: setting for key, setting in value.items() if key not in ("__type", "id")}
        return AddedToken(**{"special": True, **properties})
    return None


def _stored_tokens(
    folder: Path, config: Mapping[str, Any], names: Mapping[str, AddedToken], extra: list[AddedToken]
) -> list[AddedToken]:
    """The added tokens that tokenizer_config.json lists, or in older folders added_tokens.json, by id."""
    stored = config.get("added_tokens_decoder")
    if stored is not None:
        tokens = {int(id): AddedToken(**properties) for id, properties in stored.items()}
    else:
        special = {str(token) for token in (*names.values(), *extra)}
        stored = storage.read_json(folder / "added_tokens.json") or {}
        tokens = {
            id: AddedToken(token, normalized=token not in special, special=token in special)
            for token, id in stored.items()
        }
    return [tokens[id] for id in sorted(tokens)]


def _add_tokens(
    fast: Fast, stored: list[AddedToken], names: Mapping[str, AddedToken], extra: list[AddedToken]
) -> None:
    """Makes every token that is listed beside tokenizer.json an added one there: it stays whole."""
    there = fast.get_added_tokens_decoder().values()
    properties, spelled = {repr(token) for token in there}, {str(token) for token in there}
    wanted = [token for token in stored if repr(token) not in properties]
    spelled |= {str(token) for token in wanted}
    by_spelling = {str(token): token for token in stored}
    for token in (*names.values(), *extra):
        if str(token) not in spelled:
            wanted.append(by_spelling.get(str(token), token))
            spelled.add(str(token))
    for token in wanted:
        token.special = token.special or str(token) in {str(name) for name in names.values()}
    fast.add_tokens(wanted)


def _template(folder: Path, config: Mapping[str, Any]) -> str | None:
    """Files of templates go before the configuration."""
    files = {path.stem: path for path in (folder / "additional_chat_templates").glob("*.jinja")}
    if (folder / "chat_template.jinja").is_file():
        files["default"] = folder / "chat_template.jinja"
    if files:
        return _default({name: path.read_text(encoding="utf-8") for name, path in files.items()})
    found = config.get("chat_template")
    if isinstance(found, list):
        found = {each["name"]: each["template"] for each in found}
    return _default(found)


def _default(templates: Any) -> str | None:
    """Of several templates the one for plain chats."""
    found = templates.get("default") if isinstance(templates, dict) else templates
    return str(found) if found else None


def _by_transformers(folder: Path) -> TokenizerFiles:
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    # tokenizer.json is the whole truth; where it exists, no model class may second-guess it
    loader = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else AutoTokenizer
    full = loader.from_pretrained(str(folder), local_files_only=True)
    if not full.is_fast:
        raise ValueError("it has no form that tokenizer.json could hold, which is expected")
    fast = full.backend_tokenizer
    fast.no_truncation()
    fast.no_padding()
    return TokenizerFiles(fast, full.special_tokens_map, _default(full.chat_template))
