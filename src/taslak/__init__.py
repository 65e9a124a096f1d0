"""taslak: lossless speculative decoding of language models. The public names, nothing else.

They are imported on first use: `import taslak` alone loads neither PyTorch nor transformers.
"""

from __future__ import annotations

import gc
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from taslak.core.sampling import Sampling
    from taslak.engine import Answer, Comparison, Event, LanguageModel
    from taslak.errors import TaslakError, UserError
    from taslak.interop.wrap import from_transformers
    from taslak.loading import load

_HOME = {
    "Answer": "taslak.engine",
    "Comparison": "taslak.engine",
    "Event": "taslak.engine",
    "LanguageModel": "taslak.engine",
    "Sampling": "taslak.core.sampling",
    "TaslakError": "taslak.errors",
    "UserError": "taslak.errors",
    "from_transformers": "taslak.interop.wrap",
    "load": "taslak.loading",
}

__all__ = [
    "Answer",
    "Comparison",
    "Event",
    "LanguageModel",
    "Sampling",
    "TaslakError",
    "UserError",
    "__version__",
    "from_transformers",
    "load",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("taslak")
    if name not in _HOME:
        raise AttributeError(f"module 'taslak' has no attribute {name!r}")
    collecting = gc.isenabled()
    gc.disable()  # PyTorch brings a million objects that stay; looking for cycles among them takes 0.2 s
    try:
        return getattr(import_module(_HOME[name]), name)
    finally:
        if collecting:
            gc.enable()


def __dir__() -> list[str]:
    return __all__
