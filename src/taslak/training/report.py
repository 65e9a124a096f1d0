"""What is kept beside a trained head: where it comes from, and a picture of how it went."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from taslak.errors import OptionError
from taslak.training.trainer import Point

PACKAGES = ("taslak", "torch", "transformers", "numpy")


def provenance(settings: Mapping[str, Any], data: Path, curves: Sequence[Point]) -> dict[str, Any]:
    """What a head was made from and how. data: the file of answers."""
    return {
        "command": [Path(sys.argv[0]).name, *sys.argv[1:]],
        "settings": dict(settings),
        "commit": _commit(),
        "versions": {name: version(name) for name in PACKAGES} | {"python": sys.version.split()[0]},
        "data": {"file": data.name, "sha256": hashlib.sha256(data.read_bytes()).hexdigest()},
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "curves": [asdict(point) for point in curves],
    }


def require_plotting() -> None:
    """Raises OptionError where the plot can't be drawn; to be asked before hours of work."""
    if find_spec("matplotlib") is None:
        raise OptionError(
            'the plot of a training run needs matplotlib; install it (it is in the extra "train"), or '
            "give --no-plot"
        )


def plot(curves: Sequence[Point], file: Path, title: str) -> None:
    """Loss and accuracy over the steps; the held-out texts dashed."""
    require_plotting()
    from matplotlib.figure import Figure  # no pyplot: it keeps global state and may ask for a display

    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    for held_out, style in ((False, "-"), (True, "--")):
        points = [point for point in curves if point.held_out == held_out]
        steps = [point.step for point in points]
        name = "held-out texts" if held_out else "training texts"
        left.plot(steps, [point.loss for point in points], style, color="C0", label=name)
        for depth in range(max((len(point.accuracy) for point in points), default=0)):
            values = [point.accuracy[depth] for point in points]
            label = None if held_out else f"depth {depth + 1}"
            right.plot(steps, values, style, color=f"C{depth}", label=label)
    left.set(xlabel="step", ylabel="loss")
    right.set(xlabel="step", ylabel="accuracy of the first choice", ylim=(0, 1))
    left.legend()
    right.legend()
    figure.suptitle(title)
    partial = file.with_name(f"{file.name}.partial")
    figure.savefig(partial, format="png", dpi=120)
    partial.replace(file)


def _commit() -> str | None:
    """Of the checkout this runs from, None where there is none."""
    try:
        done = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=10,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
