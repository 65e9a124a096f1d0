"""Reading and writing heads: in our own format, and as other projects publish them.

head.py    what a head is made of, in one dataclass tree
ours.py    our format, the only one that is written
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from taslak.drafters.formats import ours
from taslak.drafters.formats.head import (
    CONFIGS,
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

__all__ = [
    "CONFIGS",
    "Eagle3Config",
    "EagleConfig",
    "ExitConfig",
    "Head",
    "HeadConfig",
    "HeadTarget",
    "LayerConfig",
    "MedusaConfig",
    "read_head",
    "write_head",
]


def read_head(folder: Path | str) -> Head:
    """The head in a folder.

    Raises CheckpointError, naming file and tensor, for a folder that is no head, a broken file, and tensors
    missing, unexpected or misshapen.
    """
    folder = Path(folder).expanduser()
    values = _config(folder)
    if ours.MARK in values:
        return ours.read(folder, values)
    raise CheckpointError(f"{folder / 'config.json'} is no head's: it lacks {ours.MARK!r}")


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
