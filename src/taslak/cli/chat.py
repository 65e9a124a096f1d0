"""`taslak chat`: a conversation at a terminal, with a model in this process or a server."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from taslak.cli import rendering
from taslak.cli.options import (
    DEFAULT_DTYPE,
    DEFAULT_MODEL,
    DRAFTING,
    Branch,
    CrossVocab,
    Device,
    Draft,
    DraftDtype,
    Dtype,
    Exact,
    ExitLayer,
    Gamma,
    Lookup,
    Method,
    Nodes,
    StopBelow,
    Threads,
    Tree,
    Verify,
    use_threads,
)
from taslak.errors import OptionError

if TYPE_CHECKING:
    from taslak.chat.backend import Backend
    from taslak.chat.settings import Settings
    from taslak.control.history import History
    from taslak.engine import LanguageModel

SAMPLING, SERVER = "Sampling", "Server"
TASK = "chat"
COUPLED, CPU = "coupled", "cpu"


def chat(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A folder in Hugging Face layout, a .gguf file, a Hub id, or a pack. "
            f"Default: {DEFAULT_MODEL}.",
        ),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Talk to a server with OpenAI's interface instead, as http://localhost:8000/v1.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    named: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="With --url which of the server's models, by default its first; else as MODEL.",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            help="For the server. Default: the environment's TASLAK_API_KEY, else OPENAI_API_KEY.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="What the model is told beforehand.")
    ] = None,
    keep_typed: Annotated[
        bool,
        typer.Option(
            "--history/--no-history", help="Keep what is typed for later chats, in the cache folder."
        ),
    ] = True,
    dtype: Dtype = DEFAULT_DTYPE,
    device: Device = CPU,
    exact: Exact = False,
    threads: Threads = None,
    method: Method = None,
    draft: Draft = None,
    draft_dtype: DraftDtype = None,
    cross_vocab: CrossVocab = False,
    gamma: Gamma = None,
    branch: Branch = None,
    tree: Tree = None,
    nodes: Nodes = None,
    exit_layer: ExitLayer = None,
    stop_below: StopBelow = None,
    lookup: Lookup = None,
    verify: Verify = COUPLED,
    plain: Annotated[
        bool, typer.Option("--plain", help="Begin without speculation.", rich_help_panel=DRAFTING)
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Divides the logits; 0 is greedy. Default: 0; with --url the server's.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    top_k: Annotated[
        int | None,
        typer.Option(metavar="N", help="Keep the k likeliest tokens.", rich_help_panel=SAMPLING),
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Keep the smallest set of likeliest tokens with this probability.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Keep tokens with this share of the likeliest one's probability.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Makes sampled replies repeatable; without it each has another.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Most tokens of a reply. Default: 1024; with --url the server's.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(
            help="End a reply before this text; may be given several times.",
            metavar="TEXT",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    record: Annotated[
        bool,
        typer.Option("--record/--no-record", help="Keep the figures (never the text) for `taslak stats`."),
    ] = True,
) -> None:
    """Chat with a model. Replies go to standard output as they are decided, accepted draft tokens in colour;
    /help lists the commands. Piped input is read a message a line."""
    loading: dict[str, Any] = {
        "draft": draft,
        "verify": verify,
        "dtype": dtype,
        "draft_dtype": draft_dtype,
        "cross_vocab": cross_vocab,
        "exact": exact,
        "branch": branch,
        "tree": tree,
        "nodes": nodes,
        "exit_layer": exit_layer,
        "stop_below": stop_below,
        "lookup": lookup,
        "device": device,
    }
    _check(url, model, named, api_key, {**loading, "threads": threads, "record": record})
    from taslak.chat.conversation import Conversation
    from taslak.chat.keyboard import Keyboard
    from taslak.chat.past import Past
    from taslak.chat.screen import Screen
    from taslak.chat.session import Session
    from taslak.chat.settings import AUTO, Settings

    settings = Settings(
        temperature=0.0 if temperature is None and url is None else temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        speculation=not plain,
        method=None if method == AUTO else method,
        gamma=gamma,
    )
    screen, history = Screen(), None
    if url is not None:
        from taslak.chat.over_url import OverUrl

        backend: Backend = OverUrl(url, named, api_key)
        backend.prepare(settings)
    else:
        use_threads(threads)
        if record:
            from taslak.control.history import History

            history = History()
        backend = _load(model or named or DEFAULT_MODEL, settings, loading, history)
    keyboard = Keyboard(Past() if keep_typed else None, screen.note)
    screen.note(backend.title + ("; /help lists the commands" if keyboard.interactive else ""))
    conversation = Conversation(system=system)
    session = Session(backend, screen, settings, conversation, interactive=keyboard.interactive)
    try:
        session.run(keyboard)
    finally:
        if history is not None:
            history.close()


def _check(
    url: str | None, model: str | None, named: str | None, api_key: str | None, here: dict[str, Any]
) -> None:
    """Raise OptionError for what would silently do nothing. here: options for a model in this process."""
    if url is None:
        if api_key is not None:
            raise OptionError("--api-key needs --url, the server that it is for")
        if model is not None and named is not None:
            raise OptionError(f"both {model} and --model {named} are named; give one of them")
        if here["draft_dtype"] is not None and here["draft"] is None:
            raise OptionError("--draft-dtype needs --draft, the model it is for")
        return
    if model is not None:
        raise OptionError(f"{model} and --url exclude each other; --model names one of the server's models")
    unset = {"dtype": DEFAULT_DTYPE, "device": CPU, "verify": COUPLED, "exact": False, "record": True}
    unset["cross_vocab"] = False
    given = [name for name, value in here.items() if value != unset.get(name)]
    if given:
        name = "no-record" if given[0] == "record" else given[0].replace("_", "-")
        raise OptionError(f"--{name} is for a model in this process; with --url leave it out")


def _load(name: str, settings: Settings, loading: dict[str, Any], history: History | None) -> Backend:
    """The model in this process, with its progress shown, and its figures kept."""
    from taslak.chat.in_process import InProcess
    from taslak.control.recorder import Recorder

    def load(method: str | None, gamma: int | None) -> LanguageModel:
        import taslak

        with rendering.ProgressBar() as progress:
            model = taslak.load(name, method=method, gamma=gamma, progress=progress, **loading)
        if history is not None:
            model.listeners.append(Recorder(model, [history.add]))
        return model

    backend = InProcess(load, settings, task=TASK, stop_below=loading["stop_below"])
    rendering.note_slow_path(backend.model.weights)
    return backend
