"""What was measured of a model and its drafters on this machine, remembered.

Kept in the cache folder by model, weights, kernels, threads and drafters. How it is measured: `measure`.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from taslak import native
from taslak.control import corrections
from taslak.control.corrections import Keeper, corrected
from taslak.control.costs import Costs, PassCost
from taslak.control.measure import Calibration, calibrate
from taslak.engine.language_model import LanguageModel
from taslak.engine.usage import processor
from taslak.errors import UserError
from taslak.models.loading import storage
from taslak.models.loading.storage import Progress

log = logging.getLogger(__name__)

VERSION = 8
_TARGET = ("version", "model", "weights", "runs", "device", "processor", "threads")
"""Of a key, what the passes of the target alone depend on."""


def calibrated(model: LanguageModel, *, fresh: bool = False, progress: Progress | None = None) -> Calibration:
    """What is remembered of this model and these drafters on this machine, else measured now and remembered.
    Costs come as corrected by what steps have taken since.

    fresh: measure anew. Takes a few seconds; what can't be stored is measured again next time. Raises what a
    drafter or the target raises.
    """
    key = _key(model)
    file = _file(key)
    known = storage.read_json(file)
    if not fresh and isinstance(known, dict) and known.get("key") == key:
        try:
            found = Calibration.from_json(known)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            log.warning("%s is damaged and measured anew: %s", file, error)
        else:
            return replace(found, costs=_corrected(found.costs, known, file))
    if progress is not None:
        progress(f"measuring what {model.name} costs here", 0, None)
    made = calibrate(model, None if fresh else _passes_of(key))
    try:
        storage.make_folder(file.parent)
        storage.write_json(file, {"key": key, **made.as_json()})
    except (UserError, OSError) as error:
        log.warning("what was measured can't be kept: %s", error)
    return made


def keeper(model: LanguageModel, costs: Costs) -> Keeper:
    """Keeps what these costs, of `calibrated`, come to, for the next time."""
    return Keeper(_file(_key(model)), costs)


def _corrected(costs: Costs, known: dict[str, Any], file: Path) -> Costs:
    if corrections.KEY not in known:
        return costs
    try:
        return corrected(costs, known[corrections.KEY], time.time())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        log.warning("what steps cost is learnt anew, %s being damaged: %s", file, error)
        return costs


def remembered() -> list[tuple[dict[str, Any], Calibration]]:
    """Everything that was measured on this machine: what it depends on, and the figures, uncorrected."""
    found = []
    for file in sorted(_home().glob("*.json")):
        known = storage.read_json(file)
        try:
            if known["key"]["version"] == VERSION:
                found.append((dict(known["key"]), Calibration.from_json(known)))
        except (AttributeError, KeyError, TypeError, ValueError):
            continue  # `calibrated` says so when it is wanted
    return found


def _passes_of(key: dict[str, Any]) -> PassCost | None:
    """What the target's passes cost, where they were measured with other drafters."""
    target = [key[part] for part in _TARGET]
    for known, found in remembered():
        if [known.get(part) for part in _TARGET] == target:
            return found.costs.passing
    return None


def _home() -> Path:
    return storage.cache_home() / "costs"


def _file(key: dict[str, Any]) -> Path:
    return _home() / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:24]}.json"


def _key(model: LanguageModel) -> dict[str, Any]:
    """Everything that the figures depend on."""
    weights, draft = model.weights, model.draft_weights
    return {
        "version": VERSION,
        "model": model.name,
        "weights": [weights.dtype, weights.path, weights.bytes_per_token],
        "runs": native.describe(),
        "device": str(model.target.device),
        "processor": processor(),
        "threads": [native.threads() if native.available() else 0, torch.get_num_threads()],
        "method": model.method,
        "drafts with": [model.draft_name, model.draft_fingerprint],
        "its weights": None if draft is None else [draft.dtype, draft.path, draft.bytes_per_token],
        "shape": [model.branch, model.tree, model.nodes, model.exit_layer],
        "rejection": model.verify == "rejection",
    }
