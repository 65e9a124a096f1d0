"""text-generation-inference 3: Medusa heads stand for their model, and n-grams need a number alone."""

from __future__ import annotations

from taslak.drafters.formats import MedusaConfig, medusa
from taslak.errors import OptionError
from taslak.interop.engines.engine import EXIT, Engine, Recipe, Wanted, every_token

_TRAIN = "it drafts with Medusa heads and n-grams; train medusa heads (taslak train medusa)"


def _recipe(wanted: Wanted, model: str, notes: list[str] | None = None) -> Recipe:
    command = ["text-generation-launcher", "--model-id", model, "--speculate", str(wanted.gamma)]
    return Recipe({"model_id": model, "speculate": wanted.gamma}, command, notes=notes or [])


def _ngram(wanted: Wanted) -> Recipe:
    return _recipe(wanted, wanted.model)


def _medusa(wanted: Wanted) -> Recipe:
    head = wanted.made
    assert isinstance(head.config, MedusaConfig)
    if wanted.gamma > head.config.heads:
        raise OptionError(f"gamma is {wanted.gamma}; these are {head.config.heads} heads and draft no deeper")
    shared = None
    if head.config.unembedding == "target":
        shared = wanted.unembedding()[: head.target.vocab_size]
    medusa.write(wanted.folder, head, unembedding=shared, base=wanted.model)
    return _recipe(wanted, str(wanted.folder), every_token(head))


ENGINE = Engine(
    "text-generation-inference",
    {"ngram": _ngram, "medusa": _medusa},
    {
        "suffix": "use ngram",
        "draft-model": _TRAIN,
        "eagle": _TRAIN,
        "eagle3": _TRAIN,
        "early-exit": EXIT,
    },
)
