"""One library with one setting, in a process of its own: answers each prompt once, a JSON line for each.

    python benchmarks/peers.py '{"library": "llama.cpp", "prompts": [{"text": …, "ids": […]}], …}'

Every answer: `first` seconds to the first token (prefill), `decode` seconds from there to the last, the
`tokens` of the answer. Started by vs_peers.py and, for llama.cpp's cost of a pass, by cpu_kernels.py; needs
nothing but the library it runs, so that each may live in an environment of its own.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Iterator
from typing import Any

Job = dict[str, Any]
Answer = dict[str, Any]


def taslak_answers(job: Job) -> Iterator[Answer]:
    """job: the arguments of `taslak.load`; `path` of the kernels; `speculate`."""
    import taslak
    from taslak import _native

    if "path" in job:
        _native.use(job["path"])
    model = taslak.load(job["model"], **job["load"])
    model.generate("Say hello.", max_tokens=8)
    for prompt in job["prompts"]:
        start = time.perf_counter()
        first = None
        for event in model.stream(prompt["text"], max_tokens=job["tokens"], speculate=job["speculate"]):
            if first is None and event.tokens:
                first = time.perf_counter()
            answer = event.answer
        end = time.perf_counter()
        assert answer is not None
        assert first is not None
        assert answer.prompt_tokens == len(prompt["ids"])
        yield {
            "first": first - start,
            "decode": end - first,
            "tokens": len(answer.ids),
            "tau": answer.counts.tau,
            "acceptance_rate": answer.counts.acceptance_rate,
            "ids": list(answer.ids),
        }


def transformers_answers(job: Job) -> Iterator[Answer]:
    """job: folders of `model` and `draft`, `dtype`, options of `generate`."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()

    class Clock:
        """A streamer: called with the prompt, then whenever tokens were decided."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, _: object) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None: ...

    def load(folder: str) -> Any:
        dtype = getattr(torch, job["dtype"])
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
        model.generation_config.update(temperature=None, top_p=None, top_k=None)
        return model

    model = load(job["model"])
    options = dict(job["options"])
    if job.get("draft"):
        draft = load(job["draft"])
        draft.generation_config.update(**job["draft_options"])
        options["assistant_model"] = draft

    def generate(ids: list[int], tokens: int) -> tuple[list[float], list[int]]:
        clock = Clock()
        start = time.perf_counter()
        given = torch.tensor([ids])
        with torch.inference_mode():
            output = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=tokens,
                do_sample=False,
                streamer=clock,
                **options,
            )
        return [start, *clock.times, time.perf_counter()], output[0, len(ids) :].tolist()

    generate(job["prompts"][0]["ids"], 4)
    for prompt in job["prompts"]:
        times, ids = generate(prompt["ids"], job["tokens"])
        yield {
            "first": times[2] - times[0],
            "decode": times[-1] - times[2],
            "tokens": len(ids),
            "ids": ids,
        }


def llama_server(job: Job) -> Any:
    """job: `model`, `draft` files; `threads`; `flash` (−1 auto, 0, 1); speculation's `type`, `options`."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = job["model"]
    params.n_ctx, params.n_parallel, params.port = 2048, 1, 0
    params.fit_params = False  # for GPUs; reads the file once more
    params.flash_attn_type = job.get("flash", -1)
    draft = params.speculative.draft
    for threads in (params.cpuparams, params.cpuparams_batch, draft.cpuparams, draft.cpuparams_batch):
        threads.n_threads = job["threads"]
    kind = job.get("type", "none")
    if kind != "none":
        known = xllamacpp.common_speculative_type
        params.speculative.types = [getattr(known, f"COMMON_SPECULATIVE_TYPE_{kind.upper()}")]
        options = draft if kind == "draft_simple" else getattr(params.speculative, kind)
        for name, value in job.get("options", {}).items():
            setattr(options, name, value)
    if job.get("draft"):
        draft.mparams.path = job["draft"]
    return xllamacpp.Server(params)


def llama_answers(job: Job) -> Iterator[Answer]:
    """A new server for each prompt, so that no n-gram cache holds anything; it warms itself up."""
    for prompt in job["prompts"]:
        server = llama_server(job)
        reply = server.handle_completions(
            {
                "prompt": prompt["ids"],
                "n_predict": job["tokens"],
                "temperature": 0.0,
                "cache_prompt": False,
            }
        )
        timings = reply["timings"]
        assert timings["prompt_n"] == len(prompt["ids"])
        yield {
            "first": timings["prompt_ms"] / 1e3,
            "decode": timings["predicted_ms"] / 1e3,
            "tokens": timings["predicted_n"],
            "drafted": timings.get("draft_n"),
            "accepted": timings.get("draft_n_accepted"),
            "text": reply["choices"][0]["text"],
        }
        del server


class Opaque(ctypes.Structure):
    """A struct of llama.h that is passed on as its defaults. Larger than any of them, which a callee that
    reads it from the stack doesn't notice."""

    _fields_ = (("words", ctypes.c_uint32 * 256),)


class Batch(ctypes.Structure):
    """llama_batch of llama.h."""

    _fields_ = (
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    )


def llama_rows(job: Job) -> Iterator[Answer]:
    """Seconds of a decode batch of n rows behind `context` tokens, logits of all rows: what verifying a draft
    costs. Through llama.cpp's C interface, which the wheel's extension exports. job: `rows`, `repeats`."""
    import xllamacpp

    lib = ctypes.CDLL(xllamacpp.xllamacpp.__file__)
    for name in ("llama_model_default_params", "llama_context_default_params"):
        getattr(lib, name).restype = Opaque
    lib.llama_batch_init.restype = Batch
    pointers = (
        "llama_model_load_from_file",
        "llama_init_from_model",
        "llama_get_memory",
        "llama_get_logits_ith",
    )
    for name in pointers:
        getattr(lib, name).restype = ctypes.c_void_p
    lib.llama_decode.argtypes = [ctypes.c_void_p, Batch]
    lib.llama_memory_seq_rm.argtypes = [ctypes.c_void_p, *(ctypes.c_int32,) * 3]

    lib.llama_backend_init()
    model = ctypes.c_void_p(
        lib.llama_model_load_from_file(job["model"].encode(), lib.llama_model_default_params())
    )
    params = lib.llama_context_default_params()
    params.words[0] = 2048  # n_ctx
    context = ctypes.c_void_p(lib.llama_init_from_model(model, params))
    lib.llama_set_n_threads(context, job["threads"], job["threads"])
    batch = lib.llama_batch_init(512, 0, 1)

    def decode(first: int, count: int, logits: bool) -> float:
        batch.n_tokens = count
        for i in range(count):
            batch.token[i], batch.pos[i] = 100 + (first + i) * 7919 % 50000, first + i
            batch.n_seq_id[i], batch.seq_id[i][0], batch.logits[i] = 1, 0, logits or i == count - 1
        start = time.perf_counter()
        failed = lib.llama_decode(context, batch)
        lib.llama_get_logits_ith(context, count - 1)  # waits
        assert failed == 0
        return time.perf_counter() - start

    start = job["context"]
    decode(0, start, False)
    memory = ctypes.c_void_p(lib.llama_get_memory(context))
    for repeat in range(job["repeats"] + 1):
        for count in job["rows"]:
            seconds = decode(start, count, True)
            lib.llama_memory_seq_rm(memory, 0, start, -1)
            if repeat:
                yield {"rows": count, "seconds": seconds}


LIBRARIES = {
    "taslak": taslak_answers,
    "transformers": transformers_answers,
    "llama.cpp": llama_answers,
    "llama.cpp rows": llama_rows,
}


def main() -> None:
    job = json.loads(sys.argv[1])
    for answer in LIBRARIES[job["library"]](job):
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
