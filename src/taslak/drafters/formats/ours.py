"""taslak's own format for heads: `config.json` with "taslak_head", and `model.safetensors`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from typing import Any

from taslak.drafters.formats.files import write_checkpoint
from taslak.drafters.formats.head import CONFIGS, Drafting, Head, HeadConfig, HeadTarget, LayerConfig
from taslak.errors import CheckpointError
from taslak.models.loading.huggingface import stored_tensors

VERSION = 1
MARK = "taslak_head"
"""The key that makes a config.json ours; its value is the version of the format."""

_DRAFT_IDS = "draft_ids"


def read(folder: Path, values: Mapping[str, Any]) -> Head:
    """`values`: its config.json. Raises CheckpointError."""
    file = folder / "config.json"
    if values[MARK] != VERSION:
        raise CheckpointError(f"{file} says {MARK} {values[MARK]!r}; this version reads {VERSION}")
    kind = values.get("kind")
    if kind not in CONFIGS:
        raise CheckpointError(f"{file}: kind is {kind!r}; expected one of {', '.join(CONFIGS)}")
    config_class = CONFIGS[kind]
    own = {field.name for field in fields(config_class)}
    unknown = set(values) - own - {MARK, "kind", "target", "draft_vocab_size", "drafting"}
    if unknown:
        raise CheckpointError(f"{file} has the unknown setting {sorted(unknown)[0]!r} for a {kind} head")
    given = {name: values[name] for name in own & set(values)}
    if "layer" in own:
        given["layer"] = _made(file, LayerConfig, values.get("layer"), "layer")
    if isinstance(given.get("captures"), list):
        given["captures"] = tuple(given["captures"])
    config: HeadConfig = _made(file, config_class, given, kind)
    target = _made(file, HeadTarget, values.get("target"), "target")
    drafting = None
    if "drafting" in values:
        drafting = _made(file, Drafting, values["drafting"], "drafting")
    tensors = dict(stored_tensors(folder))
    size = values.get("draft_vocab_size")
    ids = tensors.pop(_DRAFT_IDS, None)
    if (size is None) != (ids is None) or (ids is not None and list(ids.shape) != [size]):
        have = "no draft_ids" if ids is None else f"draft_ids of shape {list(ids.shape)}"
        raise CheckpointError(f"{folder} says draft_vocab_size {size} and has {have}; expected them to agree")
    head = Head(target, config, tensors, ids, drafting)
    head.check(folder)
    return head


def write(folder: Path | str, head: Head, provenance: Mapping[str, Any] | None = None) -> None:
    """Write a head; what `read_head` then gives is this head. `provenance`: what it was made from and how,
    kept beside it. Raises CheckpointError for a head whose tensors don't fit its configuration, DiskError."""
    head.check()
    tensors = dict(head.tensors)
    if head.draft_ids is not None:
        tensors[_DRAFT_IDS] = head.draft_ids
    write_checkpoint(folder, tensors, _config_json(head), provenance=provenance)


def _config_json(head: Head) -> dict[str, Any]:
    values: dict[str, Any] = {
        MARK: VERSION,
        "kind": head.kind,
        "target": asdict(head.target),
        "draft_vocab_size": None if head.draft_ids is None else head.draft_ids.numel(),
        **asdict(head.config),
    }
    if head.drafting is not None:
        values["drafting"] = asdict(head.drafting)
    if "layer" in values:  # what is not there has its default
        for name in ("rope_scaling", "qkv_bias"):
            if not values["layer"][name]:
                del values["layer"][name]
    return values


def _made(file: Path, kind: type, values: Any, what: str) -> Any:
    """A dataclass from JSON. Raises CheckpointError for missing, unknown or mistyped values."""
    if not isinstance(values, Mapping):
        raise CheckpointError(f"{file}: {what} is {values!r}; expected an object")
    known = {field.name: field for field in fields(kind)}
    for name in values:
        if name not in known:
            raise CheckpointError(f"{file}: {what} has the unknown setting {name!r}")
    for name, field in known.items():
        if name not in values:
            if field.default is MISSING:
                raise CheckpointError(f"{file}: {what} lacks {name!r}")
            continue
        value = values[name]
        wanted = _TYPES.get(str(field.type))
        if wanted and (not isinstance(value, wanted) or (isinstance(value, bool) and bool not in wanted)):
            raise CheckpointError(f"{file}: {name} of {what} is {value!r}; expected {field.type}")
    return kind(**values)


_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "bool": (bool,),
    "str": (str,),
    "str | None": (str, type(None)),
    "tuple[int, ...] | None": (tuple, type(None)),
}
