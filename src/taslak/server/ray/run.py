"""Starts or joins a Ray cluster, deploys there, and serves until it is told to stop. SIGTERM, Ctrl-C: what
runs may end. SIGHUP: deployed anew, which loads drafters anew and loses no request."""

from __future__ import annotations

import logging
import math
import os
import queue
import re
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.request import urlopen

import ray
from ray import serve

from taslak.errors import OptionError, TaslakError, UserError
from taslak.server.address import bind, open_to_others, shown
from taslak.server.logs import write_log
from taslak.server.ray.application import DRAIN_SECONDS, application
from taslak.server.ray.options import Options

log = logging.getLogger(__name__)

NAME = "taslak"
"""Of the application in the cluster."""

MISTAKE = re.compile(r"^taslak\.errors\.\w+: (.+)$", re.MULTILINE)
"""What a replica says in its traceback when it can't load what it was told to."""

KNOCK_SECONDS = 10.0

QUIET = {"log_level": "WARNING", "enable_access_log": False}


def run(given: dict[str, Any], host: str, port: int, cores: int, address: str | None = None) -> None:
    """
    given:   fields of `Options`; without num_cpus, replicas share the CPUs there are evenly
    cores:   of this machine, for a cluster that is started here
    address: of the cluster to join, as Ray writes it; None = one is started here and ends with this

    Raises OptionError where the cluster can't be joined or is too small, and what loading a model raises.
    """
    heard = host
    try:
        with bind(
            host, port
        ) as bound:  # whether it can be had; Ray Serve binds it itself, in another process
            heard, port = bound.getsockname()[:2]
    except OptionError:
        if address is None:
            raise  # else Ray Serve may have it already
    if address is None:  # what doesn't fit is told before a cluster is started for it
        _fitting(given, [{"CPU": float(cores), "GPU": math.inf}])
    with _cluster(address, cores):
        found: list[dict[str, Any]] = ray.nodes()  # type: ignore[no-untyped-call]
        options = _fitting(given, [node["Resources"] for node in found if node["Alive"]])
        write_log()
        logging.getLogger("ray.serve").setLevel(logging.WARNING)
        serve.start(http_options={"host": host, "port": port}, logging_config=QUIET)
        try:
            deploy(options)
            if options.settings.api_key is None and open_to_others(heard):
                log.warning(
                    "%s is open to everybody who reaches it; set an API key (--api-key)", shown(heard)
                )
            url = f"http://{shown(heard)}:{port}"
            if not _answers(url):
                log.warning("nothing answers on %s: Ray Serve keeps the address it was started with", url)
            names = ", ".join(options.models)
            print(f"taslak serves {names} on {url} ({_replicas(options)})", file=sys.stderr, flush=True)
            for _ in _until_told():
                try:
                    deploy(options)
                except TaslakError as error:  # the replicas that haven't ended go on
                    log.error("could not be deployed anew: %s", error)
                else:
                    log.info("was deployed anew")
        finally:
            withdraw()
            if address is None:
                serve.shutdown()  # type: ignore[no-untyped-call]


def deploy(options: Options) -> None:
    """Have the cluster serve this from now on, in place of what this application was before; returns when it
    does. Raises what loading raises."""
    try:
        serve.run(application(options), name=NAME, route_prefix="/", logging_config=QUIET)
    except RuntimeError as error:
        status = serve.status().applications.get(NAME)
        told = "" if status is None else "\n".join(d.message for d in status.deployments.values())
        mistakes = MISTAKE.findall(told.replace("\\n", "\n"))
        if mistakes:
            raise UserError(mistakes[-1]) from None
        raise TaslakError(f"Ray Serve could not deploy it: {told.strip() or error}") from None


def withdraw() -> None:
    """Take nothing new, let what runs end."""
    serve.delete(NAME, _blocking=False)
    end = time.monotonic() + DRAIN_SECONDS + 10.0
    while NAME in serve.status().applications and time.monotonic() < end:
        time.sleep(0.2)


def _fitting(given: dict[str, Any], nodes: list[dict[str, float]]) -> Options:
    """The options, with the share of each replica. Raises OptionError for more than the nodes can take."""
    options = Options(**given)
    cpus, gpus = ([node.get(kind, 0.0) for node in nodes] for kind in ("CPU", "GPU"))
    if "num_cpus" not in given:
        share = min(sum(cpus) // (options.max_replicas or options.replicas), max(cpus, default=0.0))
        options = Options(**given, num_cpus=max(1.0, share))
    room = sum(
        int(min(cpu // options.num_cpus, gpu // options.gpus if options.gpus else math.inf))
        for cpu, gpu in zip(cpus, gpus, strict=True)
    )
    if options.replicas > room:
        each = f"{options.num_cpus:g} CPUs" + (f" and {options.gpus:g} GPUs" if options.gpus else "")
        raise OptionError(
            f"{options.replicas} replicas of {each} are asked for, and there is room for {room}: "
            f"{sum(cpus):g} CPUs on {len(nodes)} machine{'s' if len(nodes) > 1 else ''}; take fewer "
            "--replicas or --threads, or join a larger cluster (--ray-address)"
        )
    return options


@contextmanager
def _cluster(address: str | None, cores: int) -> Iterator[None]:
    quiet: dict[str, Any] = {"logging_level": logging.WARNING}
    try:
        if address is None:
            os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a server of ours reports to nobody
            ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
        else:
            _knock(address)
            ray.init(address=address, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        raise OptionError(
            f"no Ray cluster can be joined at {address}: {error}; start one with `ray start --head`, set "
            "RAY_AUTH_MODE=token where it asks for a token, or leave --ray-address out"
        ) from None
    try:
        yield
    finally:
        ray.shutdown()


def _knock(address: str) -> None:
    """Raises OSError where nobody listens, which Ray takes minutes to find out."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), KNOCK_SECONDS).close()


def _until_told() -> Iterator[None]:
    """Yields at every SIGHUP, ends at SIGTERM or SIGINT."""
    told: queue.SimpleQueue[int] = queue.SimpleQueue()
    numbers = [signal.SIGTERM, signal.SIGINT, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
    for number in numbers:
        signal.signal(number, lambda number, _: told.put(number))
    while told.get() not in (signal.SIGTERM, signal.SIGINT):
        yield


def _answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _replicas(options: Options) -> str:
    most = options.max_replicas or options.replicas
    count = str(most) if most == options.replicas else f"{options.replicas} to {most}"
    return f"replicas: {count}, threads of each: {options.threads}"
