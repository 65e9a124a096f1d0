"""Reading and writing heads: in our own format, and as other projects publish them.

head.py      what a head is made of, in one dataclass tree
ours.py      our format, the only one that training writes
eagle.py     EAGLE, EAGLE-2
eagle3.py    EAGLE-3 in the layouts of its authors, SpecForge and speculators
llama.py     what these share
medusa.py    Medusa
files.py     tensors from safetensors and pickled files; whole folders written
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taslak.drafters.formats import eagle, eagle3, medusa, ours
from taslak.drafters.formats.head import (
    CONFIGS,
    Drafting,
    Eagle3Config,
    EagleConfig,
    ExitConfig,
    Head,
    HeadConfig,
    HeadTarget,
    LayerConfig,
    MedusaConfig,
)
from taslak.drafters.formats.ours import write as write_head
from taslak.errors import CheckpointError
from taslak.models.loading.huggingface import TOKENIZER_FILES

__all__ = [
    "CONFIGS",
    "Drafting",
    "Eagle3Config",
    "EagleConfig",
    "ExitConfig",
    "Head",
    "HeadConfig",
    "HeadTarget",
    "LayerConfig",
    "MedusaConfig",
    "find_head",
    "read_head",
    "shipped_head",
    "write_head",
]


SHIPPED = Path(__file__).parents[2] / "heads"
"""Where the heads that come with taslak lie, a folder each."""

_MARKS = (ours.MARK, eagle3.SPECULATORS, medusa.MARK)


def read_head(folder: Path | str) -> Head:
    """The head in a folder.

    Raises CheckpointError, naming file and tensor, for a folder that is no head, a broken file, and tensors
    missing, unexpected or misshapen.
    """
    folder = Path(folder).expanduser()
    values = _config(folder)
    if ours.MARK in values:
        return ours.read(folder, values)
    if eagle3.SPECULATORS in values:
        return eagle3.read_speculators(folder, values)
    if medusa.MARK in values:
        return medusa.read(folder, values)
    if eagle3.is_eagle3(values):
        return eagle3.read(folder, values)
    return eagle.read(folder, values)


def find_head(name: Path | str) -> Path | None:
    """The folder of the head `name` means: one that holds a head, or that of a head which comes with taslak.
    None where it means something else, a model for instance. Nothing but config.json is read."""
    folder = Path(name).expanduser()
    if (folder / "config.json").is_file():
        # a head is no model: it has no tokenizer of its own
        alone = not any((folder / file).is_file() for file in TOKENIZER_FILES)
        return folder if alone or any(mark in _config(folder) for mark in _MARKS) else None
    shipped = SHIPPED / str(name)
    return shipped if shipped.parent == SHIPPED and (shipped / "config.json").is_file() else None


def shipped_head(model: str, kind: str) -> str | None:
    """The name of the head of this kind that comes with taslak for a model; None where there is none."""
    name = f"{model}-{kind}"
    return name if Path(name).name == name and (SHIPPED / name / "config.json").is_file() else None


def _config(folder: Path) -> Mapping[str, Any]:
    file = folder / "config.json"
    try:
        values = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder} has no config.json; expected the folder of a head") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{file} can't be read as JSON: {error}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{file} holds no JSON object")
    return values
