"""What vLLM makes of what was handed over. Runs in an environment that has it, and without taslak:

python vllm_reference.py JOBS.json OUT.json

JOBS:  a list of {"model", "settings", "prompt"?}: read as --speculative-config, with a prompt (ids) served
OUT:   a list of {"method", "tokens", "error"?} and, of what was served, {"ids", "drafted", "accepted"}
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}

from vllm import LLM, SamplingParams
from vllm.engine.arg_utils import EngineArgs

SAME: dict[str, Any] = {"dtype": "float32", "max_model_len": 128, "enforce_eager": True, "max_num_seqs": 2}
LONG = 30


def read(job: dict[str, Any]) -> dict[str, Any]:
    config = EngineArgs(job["model"], speculative_config=dict(job["settings"]), **SAME).create_engine_config()
    found = config.speculative_config
    return {"method": found.method, "tokens": found.num_speculative_tokens}


def served(job: dict[str, Any]) -> dict[str, Any]:
    settings = {"speculative_config": dict(job["settings"]), "skip_tokenizer_init": True}
    llm = LLM(job["model"], disable_log_stats=False, **settings, **SAME)
    sampling = SamplingParams(temperature=0, max_tokens=LONG, ignore_eos=True, detokenize=False)
    (answer,) = llm.generate([{"prompt_token_ids": job["prompt"]}], sampling)
    counts = {metric.name: metric.value for metric in llm.get_metrics() if hasattr(metric, "value")}
    names = {"drafted": "draft_tokens", "accepted": "accepted_tokens"}
    figures = {name: counts[f"vllm:spec_decode_num_{theirs}"] for name, theirs in names.items()}
    return {"ids": list(answer.outputs[0].token_ids), **figures}


def main(jobs: str, out: str) -> None:
    found = []
    for job in json.loads(Path(jobs).read_text()):
        try:
            found.append(read(job) | (served(job) if "prompt" in job else {}))
        except Exception as error:
            found.append({"error": f"{type(error).__name__}: {error}"})
    Path(out).write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
