"""What a deployment may be told, as a command line or a config file would."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pydantic", reason="needs the extra [serve]")
pytest.importorskip("ray", reason="needs the extra [ray]")

from pydantic import ValidationError

from taslak.errors import OptionError
from taslak.server.ray.options import Options


def test_a_command_line_says_all_in_words() -> None:
    """As `serve run taslak.server.ray:application model=... timeout=60` gives it."""
    told = {"model": "m", "replicas": "2", "max_replicas": "4", "num_cpus": "2.5", "exact": "true"}
    options = Options(**told, timeout="60", api_key="k", draft="d", max_running="8")  # type: ignore[arg-type]
    assert (options.replicas, options.max_replicas, options.threads) == (2, 4, 2)
    assert options.exact is True
    assert options.models == {"m": "m"}
    assert options.drafts == {"m": "d"}
    settings = options.settings
    assert (settings.timeout, settings.api_key, settings.max_running) == (60.0, "k", 8)
    assert settings.max_waiting == 256


def test_shares() -> None:
    assert Options(model="m").gpus == 0.0
    assert Options(model="m", device="cuda").gpus == 1.0
    assert Options(model="m", device="cuda", num_gpus=0.5).gpus == 0.5
    assert Options(model="m", num_cpus=0.25).threads == 1


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({}, "model"),
        ({"model": "m", "replicas": 0}, "replicas"),
        ({"model": "m", "replicas": 3, "max_replicas": 2}, "max_replicas"),
        ({"model": "m", "num_cpus": 0}, "num_cpus"),
        ({"model": "m", "nonsense": 1}, "nonsense"),
        ({"model": "m", "settings": {"nonsense": 1}}, "nonsense"),
        ({"model": {"a": "x", "b": "y"}, "draft": "d"}, "whose"),
        ({"model": {"a": "x"}, "draft": {"b": "d"}}, "b"),
        ({"model": "m", "admin": True}, "admin"),
        ({"model": "m", "max_running": 0}, "max-running"),
    ],
)
def test_mistakes_are_named(given: dict[str, Any], named: str) -> None:
    with pytest.raises((ValidationError, OptionError), match=named):
        Options(**given)
