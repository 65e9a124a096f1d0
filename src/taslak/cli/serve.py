"""`taslak serve`: an OpenAI-compatible server."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from taslak.cli import rendering
from taslak.cli.options import (
    DEFAULT_DTYPE,
    DEFAULT_MODEL,
    DRAFTING,
    CrossVocab,
    Device,
    Dtype,
    Exact,
    Gamma,
    Method,
    Threads,
    Verify,
    check_price,
    use_threads,
)
from taslak.errors import OptionError

LOOPBACK = ("127.0.0.1", "::1", "localhost")

SERVING, LIMITS, WATCHING, CLUSTER = "Serving", "Limits", "Watching", "Several replicas"


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]MODEL...",
            help="What to serve, each under its own name or another. Default: smollm2-135m-instruct.",
        ),
    ] = None,
    host: Annotated[
        str,
        typer.Option(
            metavar="ADDRESS",
            help="Where to listen; default: for this machine alone. Set an API key before opening it.",
            rich_help_panel=SERVING,
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(metavar="N", help="0 takes a free one.", rich_help_panel=SERVING)
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            metavar="KEY",
            envvar="TASLAK_API_KEY",
            show_envvar=True,
            help="Answer only those who send it.",
            rich_help_panel=SERVING,
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ORIGIN",
            help="Let web pages from there ask; may be given several times. Default: none.",
            rich_help_panel=SERVING,
        ),
    ] = None,
    admin: Annotated[
        bool,
        typer.Option(
            "--admin", help="Let drafters be changed over HTTP (/admin/drafter).", rich_help_panel=SERVING
        ),
    ] = False,
    dtype: Dtype = DEFAULT_DTYPE,
    device: Device = "cpu",
    exact: Exact = False,
    threads: Threads = None,
    method: Method = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]DRAFT",
            help="A smaller model with the same tokenizer, or a head's folder; of several models NAME says "
            "whose. SIGHUP loads them anew.",
            rich_help_panel=DRAFTING,
        ),
    ] = None,
    cross_vocab: CrossVocab = False,
    gamma: Gamma = None,
    verify: Verify = "coupled",
    max_running: Annotated[
        int, typer.Option(metavar="N", help="Answers that share a pass.", rich_help_panel=LIMITS)
    ] = 64,
    max_waiting: Annotated[
        int,
        typer.Option(metavar="N", help="Answers that wait; more get status 429.", rich_help_panel=LIMITS),
    ] = 256,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="Longest a request may take.", rich_help_panel=LIMITS)
    ] = 600.0,
    max_prompt_tokens: Annotated[
        int | None,
        typer.Option(metavar="N", help="Default: what the context holds.", rich_help_panel=LIMITS),
    ] = None,
    max_body_mib: Annotated[
        float, typer.Option(metavar="MIB", help="Largest body of a request.", rich_help_panel=LIMITS)
    ] = 8.0,
    prefix_cache_mib: Annotated[
        float,
        typer.Option(
            metavar="MIB",
            help="Of a model's K/V cache, kept for prompts that begin alike; 0 keeps nothing.",
            rich_help_panel=LIMITS,
        ),
    ] = 512.0,
    collect: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Append every served prompt, as `taslak train --prompts` reads them. Only with the consent "
            "of those who ask.",
            rich_help_panel=WATCHING,
        ),
    ] = None,
    record: Annotated[
        bool,
        typer.Option(
            "--record/--no-record",
            help="Keep the figures (never the text) for `taslak stats`.",
            rich_help_panel=WATCHING,
        ),
    ] = True,
    price_per_hour: Annotated[
        float | None,
        typer.Option(
            metavar="PRICE", help="Of this machine: shows what tokens cost.", rich_help_panel=WATCHING
        ),
    ] = None,
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Put prompts into the log.", rich_help_panel=WATCHING)
    ] = False,
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Serve with several processes, on one machine or many, through Ray Serve. --threads is then "
            "of each replica; default: an even share of the CPUs. With --device cuda each has a GPU.",
            rich_help_panel=CLUSTER,
        ),
    ] = False,
    replicas: Annotated[
        int | None,
        typer.Option(metavar="N", help="How many with --ray; default: 1.", rich_help_panel=CLUSTER),
    ] = None,
    max_replicas: Annotated[
        int | None,
        typer.Option(
            metavar="M", help="With the load up to M, and back to --replicas.", rich_help_panel=CLUSTER
        ),
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="The cluster to join, as Ray names it (HOST:PORT, auto). Default: one is started here.",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
) -> None:
    """Serve models over OpenAI's HTTP interface, with a dashboard at / and metrics at /metrics."""
    check_price(price_per_hour)
    named = _named(models or [DEFAULT_MODEL])
    drafts = _drafts(draft or [], list(named))
    for option, given in (
        ("--replicas", replicas),
        ("--max-replicas", max_replicas),
        ("--ray-address", ray_address),
    ):
        if given is not None and not ray:
            raise OptionError(f"{option} belongs to --ray; give that too, or leave it out")
    if cross_vocab and not drafts:
        raise OptionError("--cross-vocab needs --draft, the model with another tokenizer")
    if not ray:
        use_threads(threads)
    try:
        from taslak.server.app import Server
        from taslak.server.run import run
        from taslak.server.settings import Settings
    except ImportError as error:
        raise OptionError(
            f"serving needs packages that aren't installed ({error.name}); pip install 'taslak[serve]'"
        ) from None
    settings = Settings(
        api_key=api_key,
        max_running=max_running,
        max_waiting=max_waiting,
        timeout=timeout,
        max_body_bytes=_bytes("--max-body-mib", max_body_mib),
        max_prompt_tokens=max_prompt_tokens,
        prefix_bytes=_bytes("--prefix-cache-mib", prefix_cache_mib),
        hosts=(host, *LOOPBACK) if api_key is None and host in LOOPBACK else (),
        origins=tuple(cors or ()),
        price_per_hour=price_per_hour,
        collect=collect,
        log_prompts=log_prompts,
        admin=admin,
    )
    options: dict[str, Any] = {
        "cross_vocab": cross_vocab,
        "gamma": gamma,
        "verify": verify,
        "dtype": dtype,
        "device": device,
        "exact": exact,
    }
    if ray:
        scale = {"replicas": replicas, "max_replicas": max_replicas, "num_cpus": threads}
        options |= {key: value for key, value in scale.items() if value is not None}
        options |= {"model": named, "draft": drafts, "method": method, "record": record, "settings": settings}
        _on_ray(options, host, port, ray_address)
        return
    from taslak.control.history import History

    history = History() if record else None
    server = Server(settings, history)
    options["history"] = history
    for name, model in named.items():
        with rendering.ProgressBar() as progress:
            server.load(
                name,
                model,
                drafts.get(name),
                method,
                share=1.0 / len(named),
                progress=progress,
                **options,
            )
    try:
        run(server, host, port)
    finally:
        if history is not None:
            history.close()


def _bytes(option: str, mib: float) -> int:
    if not 0.0 <= mib < 1e9:
        raise OptionError(f"{option} is {mib}; expected a size from 0 up")
    return int(mib * (1 << 20))


def _on_ray(options: dict[str, Any], host: str, port: int, address: str | None) -> None:
    try:
        from taslak.server.ray.run import run
    except ImportError as error:
        raise OptionError(
            f"--ray needs packages that aren't installed ({error.name}); pip install 'taslak[ray]'"
        ) from None
    from pydantic import ValidationError

    from taslak import native

    for kind in ("model", "draft"):  # replicas have a working folder of their own
        options[kind] = {name: _absolute(given) for name, given in options[kind].items()}
    collect = options["settings"].collect
    if collect is not None:
        options["settings"] = replace(options["settings"], collect=collect.expanduser().absolute())
    try:
        run(options, host, port, native.cores(), address)
    except ValidationError as error:
        first = error.errors()[0]
        where = "--" + str(first["loc"][0]).replace("_", "-") + ": " if first["loc"] else ""
        raise OptionError(where + first["msg"].removeprefix("Value error, ")) from None


def _absolute(model: str) -> str:
    return str(Path(model).absolute()) if Path(model).exists() else model


def _named(models: list[str]) -> dict[str, str]:
    """By the names they are served under."""
    named: dict[str, str] = {}
    for each in models:
        name, _, model = each.rpartition("=")
        name = name or model
        if name in named:
            raise OptionError(f"two models would be served as {name}; name one of them: OTHER={model}")
        named[name] = model
    return named


def _drafts(drafts: list[str], names: list[str]) -> dict[str, str]:
    """By the names of the models they are for."""
    found: dict[str, str] = {}
    for each in drafts:
        name, _, draft = each.rpartition("=")
        if not name:
            if len(names) > 1:
                raise OptionError(f"--draft {each} is for one of {', '.join(names)}; say whose: NAME={each}")
            name = names[0]
        if name not in names:
            raise OptionError(
                f"--draft {each} is for {name}, which isn't served; there is {', '.join(names)}"
            )
        if name in found:
            raise OptionError(f"--draft names two for {name}; give one")
        found[name] = draft
    return found
