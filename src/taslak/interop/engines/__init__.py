"""What each engine takes of ours, how the files look, and how it is started. One file an engine.

The only place that knows other engines' options; docs/export.md says which of them were seen at work.
"""

from __future__ import annotations

from taslak.interop.engines import llama_cpp, sglang, tensorrt_llm, tgi, vllm
from taslak.interop.engines.engine import Engine, Recipe, Wanted

__all__ = ["ENGINES", "Engine", "Recipe", "Wanted"]

ENGINES: dict[str, Engine] = {
    "vllm": vllm.ENGINE,
    "sglang": sglang.ENGINE,
    "llama.cpp": llama_cpp.ENGINE,
    "tensorrt-llm": tensorrt_llm.ENGINE,
    "tgi": tgi.ENGINE,
}
"""Its name on the command line -> the engine."""
