"""The routes, and what holds them together."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from taslak.control.monitor import Event
from taslak.drafters.formats import find_head
from taslak.engine.language_model import LanguageModel
from taslak.engine.sequence import Answer
from taslak.engine.sequence import Request as Asked
from taslak.errors import ContextFull, ModelNotFound, OptionError, PromptError, TaslakError, UserError
from taslak.loading import load
from taslak.server.catalogue import Catalogue, Served
from taslak.server.collect import Collector
from taslak.server.endpoint import STATUS, describe, respond, told_as
from taslak.server.form import ChatForm, CompletionForm, Form
from taslak.server.guard import BodyGuard, HostGuard, KeyGuard, PageHeaders, error_body
from taslak.server.infill import infill
from taslak.server.live import Live
from taslak.server.metrics import Metrics
from taslak.server.protocol import ChatRequest, CompletionRequest, DrafterChange, Generation
from taslak.server.settings import Settings
from taslak.server.worker import Broken, Busy, Closed, Job

log = logging.getLogger(__name__)
requests_log = logging.getLogger("taslak.requests")

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {
        "description": text,
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
    }
    for status, text in (
        (400, "The body is not what is expected, or asks for what isn't supported."),
        (401, "The API key is missing or wrong."),
        (404, "No model of this name is served."),
        (413, "The body is too large."),
        (429, "Too many requests wait."),
        (500, "The answer failed."),
        (503, "The server is shutting down."),
        (504, "The answer took too long."),
    )
}
"""What the OpenAPI document says of errors."""

ERROR_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}


class Server:
    """A catalogue behind HTTP. `app` is the ASGI application."""

    def __init__(self, settings: Settings, history: Any = None) -> None:
        """history: a `control.history.History` that records go to; None = none. Raises OptionError for a
        file to collect prompts in that can't be written."""
        self.settings = settings
        self.catalogue = Catalogue(
            settings,
            finished=self._finished,
            records=None if history is None else history.add,
            events=self._event,
        )
        self.live = Live(self.catalogue)
        self.metrics = Metrics(self.catalogue, self.live)
        self.ready = False
        self._collector = None if settings.collect is None else Collector(settings.collect)
        self.app = self._application()

    def load(
        self,
        name: str,
        model: str,
        draft: str | None = None,
        method: str | None = None,
        *,
        cross_vocab: bool = False,
        **options: Any,
    ) -> None:
        """Load a model with `taslak.load` and serve it under a name; its drafter can be changed afterwards.
        cross_vocab: any draft model it has may be of another tokenizer. Raises what loading raises."""

        def loaded(draft: str | None, method: str | None, **options: Any) -> LanguageModel:
            crossing = cross_vocab and draft is not None and find_head(draft) is None
            return load(model, draft=draft, method=method, cross_vocab=crossing, **options)

        first = loaded(draft, method, **options)

        def again(draft: str | None, method: str | None) -> LanguageModel:
            # to measure costs beside the running passes would spoil both
            return loaded(draft, method, target=first.pretrained, **{**options, "control": False})

        self.catalogue.add(name, first, again, (draft, method))

    def _event(self, name: str, event: Event) -> None:
        self.live.event(name, event)

    def _finished(self, name: str, job: Job, index: int, answer: Answer) -> None:
        self.metrics.finished(name, job, index, answer)
        if job.requests[index].choice == 0:
            self.live.prompt_tokens += answer.prompt_tokens
            self.live.cached_tokens += answer.cached_tokens

    def _application(self) -> FastAPI:
        settings = self.settings
        app = FastAPI(
            title="taslak",
            version=version("taslak"),
            description="OpenAI's chat and completion endpoints, with speculative decoding behind them.",
            lifespan=self._lifespan,
            docs_url=None,
            redoc_url=None,
        )
        app.add_middleware(PageHeaders)
        app.add_middleware(BodyGuard, most=settings.max_body_bytes)
        if settings.api_key is not None:
            app.add_middleware(KeyGuard, key=settings.api_key)
        if settings.hosts:
            app.add_middleware(HostGuard, hosts=settings.hosts)
        if settings.origins:
            app.add_middleware(
                CORSMiddleware,
                allow_origins=list(settings.origins),
                allow_methods=["GET", "POST"],
                allow_headers=["authorization", "content-type"],
            )
        self._routes(app)
        self._errors(app)
        made = app.openapi

        def openapi() -> dict[str, Any]:
            document = made()
            document.setdefault("components", {}).setdefault("schemas", {})["Error"] = ERROR_SCHEMA
            return document

        app.openapi = openapi  # type: ignore[method-assign]
        return app

    @asynccontextmanager
    async def _lifespan(self, _: FastAPI) -> AsyncIterator[None]:
        sampling = asyncio.create_task(self._sample())
        self.ready = True
        try:
            yield
        finally:
            self.ready = False
            sampling.cancel()
            with suppress(asyncio.CancelledError):
                await sampling
            await asyncio.to_thread(self.catalogue.close, True)

    async def _sample(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            try:
                self.live.sample()
            except Exception:  # a figure less, not a server less
                log.exception("a sample could not be taken")

    def _routes(self, app: FastAPI) -> None:
        static = files("taslak.server") / "static"

        @app.post("/v1/chat/completions", responses=ERRORS, tags=["OpenAI"])
        async def chat(body: ChatRequest, http: Request) -> Response:
            """Answer a conversation."""
            served = self._named(body.model, http)
            messages = [message.plain for message in body.messages]
            asked = await asyncio.to_thread(self._requests, served, messages, body)
            form = ChatForm(served.model, asked, body.speculation, body.usage_asked, served.name)
            return await self._answer(http, served, asked, form, body, messages)

        @app.post("/v1/completions", responses=ERRORS, tags=["OpenAI"])
        async def completion(body: CompletionRequest, http: Request) -> Response:
            """Continue texts, or fill in between two (suffix)."""
            served = self._named(body.model, http)
            most = self.settings.max_running + self.settings.max_waiting
            if len(body.prompts) * body.n > most:
                raise OptionError(
                    f"{len(body.prompts)} prompts with n = {body.n}; this server takes {most} answers at once"
                )
            asked: list[Asked] = []
            echoes: dict[int, str] = {}
            for prompt in body.prompts:
                made = await asyncio.to_thread(self._continuations, served, prompt, body)
                if body.echo:
                    text = prompt if isinstance(prompt, str) else served.model.tokenizer.decode(prompt)
                    echoes |= {len(asked) + i: text for i in range(len(made))}
                asked += made
            form = CompletionForm(
                served.model, asked, body.speculation, body.usage_asked, served.name, echoes
            )
            return await self._answer(http, served, asked, form, body, body.prompts)

        @app.get("/v1/models", responses={401: ERRORS[401]}, tags=["OpenAI"])
        async def models() -> dict[str, Any]:
            """What is served."""
            return {"object": "list", "data": [_model(served) for served in self.catalogue]}

        @app.get("/v1/models/{name:path}", responses=ERRORS, tags=["OpenAI"])
        async def model(name: str) -> dict[str, Any]:
            """One model."""
            return _model(self._named(name))

        @app.get("/health", tags=["operation"])
        async def health() -> dict[str, str]:
            """Whether the process lives."""
            return {"status": "ok"}

        @app.get("/ready", tags=["operation"], responses={503: ERRORS[503]})
        async def ready() -> Response:
            """Whether requests are taken."""
            taken = self.ready and len(self.catalogue) > 0 and all(s.worker.open for s in self.catalogue)
            return JSONResponse({"status": "ready" if taken else "not ready"}, 200 if taken else 503)

        @app.get("/metrics", tags=["operation"], response_class=Response)
        async def metrics() -> Response:
            """For Prometheus."""
            return Response(self.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

        @app.get("/api/dashboard", tags=["operation"])
        async def dashboard() -> dict[str, Any]:
            """What the page shows."""
            return self.live.shown()

        if self.settings.admin:

            @app.post("/admin/drafter", responses=ERRORS, tags=["operation"])
            async def drafter(change: DrafterChange) -> dict[str, Any]:
                """Answer new requests with another drafter; those that run end as they began."""
                served = self._named(change.model)
                if served.loads is None:
                    raise OptionError(f"the drafter of {change.model} can't be changed here")
                given = (served, change.draft, change.method)
                try:
                    await asyncio.to_thread(self.catalogue.change_drafter, *given)
                except UserError as error:  # says which file is wrong, and how: not to whoever asks
                    log.warning("the drafter of %s stays: %s", served.name, error)
                    raise OptionError("the drafter could not be loaded; the log says why") from error
                return {"model": served.name, "method": served.model.method, "draft": served.model.draft_name}

        @app.get("/", include_in_schema=False)
        async def page() -> Response:
            return HTMLResponse((static / "index.html").read_text(encoding="utf-8"))

        @app.get("/favicon.ico", include_in_schema=False)
        async def icon() -> Response:
            return Response(status_code=204)

        app.mount("/static", StaticFiles(directory=str(static)), name="static")

    def _named(self, name: str, http: Request | None = None) -> Served:
        """The model of this name; what becomes of the call is then counted as one of its."""
        served = self.catalogue.get(name)
        if served is None:
            known = ", ".join(each.name for each in self.catalogue)
            raise ModelNotFound(f"no model {name!r} is served here; there is {known}")
        if http is not None:
            http.state.model = served.name
        return served

    def _requests(self, served: Served, prompt: Any, body: Generation, raw: bool = False) -> list[Asked]:
        """The engine's requests for one prompt, checked."""
        asked = served.model.requests(prompt, raw=raw, **body.options())
        most = self.settings.max_prompt_tokens
        if most is not None and len(asked[0].prompt) > most:
            raise PromptError(f"the prompt has {len(asked[0].prompt)} tokens; this server takes {most}")
        for request in asked:
            served.worker.check(request)
        return asked

    def _continuations(self, served: Served, prompt: str | list[int], body: CompletionRequest) -> list[Asked]:
        given: Any = prompt
        if body.suffix is not None and isinstance(prompt, str):
            given = infill(served.model.tokenizer, prompt, body.suffix)
        return self._requests(served, given, body, raw=isinstance(given, str))

    def _collect(self, prompt: list[Any], task: str) -> None:
        """Keep what was answered: a conversation, or texts; not token ids."""
        if self._collector is None:
            return
        if isinstance(prompt[0], dict):
            self._collector.messages(prompt, task)
        for text in prompt:
            if isinstance(text, str):
                self._collector.text(text, task)

    async def _answer(
        self,
        http: Request,
        served: Served,
        asked: Sequence[Asked],
        form: Form,
        body: Generation,
        prompt: list[Any],
    ) -> Response:
        started = time.monotonic()
        number = uuid.uuid4().hex[:12]

        def done(status: int, answers: Sequence[Answer]) -> None:
            self._count(http, status)
            if status == 200:
                self._collect(prompt, body.task)
            told: dict[str, Any] = {
                "id": number,
                "model": served.name,
                "endpoint": _endpoint(http),
                "status": status,
            }
            told |= describe(started, answers) | {"task": body.task or None, "user": body.user}
            if self.settings.log_prompts:
                told["prompt"] = prompt
            requests_log.info("request", extra={"fields": told})

        return await respond(http, served, asked, form, body.stream, done)

    def _count(self, http: Request, status: int) -> None:
        self.metrics.status(getattr(http.state, "model", ""), _endpoint(http), status)
        self.live.requests += 1
        self.live.failed += status >= 400

    def _refused(self, http: Request, status: int, why: str) -> None:
        """Count and log a call that never ran. The reason may hold what was sent, but no prompt's text."""
        self._count(http, status)
        told = {"endpoint": _endpoint(http), "status": status, "model": getattr(http.state, "model", None)}
        requests_log.info("refused", extra={"fields": told | {"why": why[:200]}})

    def _errors(self, app: FastAPI) -> None:
        def told(
            http: Request, status: int, body: dict[str, Any], headers: Mapping[str, str] | None = None
        ) -> Response:
            del http
            return JSONResponse(body, status, headers=dict(headers or {}))

        @app.exception_handler(RequestValidationError)
        async def invalid(http: Request, error: RequestValidationError) -> Response:
            message, param = _explained(error)
            self._refused(http, 400, message)
            return told(http, 400, error_body(message, "invalid_request_error", None, param))

        @app.exception_handler(UserError)
        async def mistaken(http: Request, error: UserError) -> Response:
            missing = isinstance(error, ModelNotFound)
            status = 404 if missing else 400
            self._refused(http, status, str(error))
            full = isinstance(error, ContextFull)
            code = "model_not_found" if missing else "context_length_exceeded" if full else None
            return told(http, status, error_body(str(error), "invalid_request_error", code))

        @app.exception_handler(TaslakError)
        async def failed(http: Request, error: TaslakError) -> Response:
            status, kind, code = told_as(error)
            if isinstance(error, Busy | Closed | Broken):  # of all others the call itself has told
                self._refused(http, status, str(error))
            headers = {"retry-after": str(error.retry_after)} if isinstance(error, Busy) else {}
            message = str(error) if type(error) in STATUS else "the server failed"
            return told(http, status, error_body(message, kind, code), headers)

        @app.exception_handler(HTTPException)
        async def unknown(http: Request, error: HTTPException) -> Response:
            body = error_body(str(error.detail), "invalid_request_error")
            return told(http, error.status_code, body, error.headers)

        @app.exception_handler(Exception)
        async def broken(http: Request, error: Exception) -> Response:
            log.error("a request failed", exc_info=error)
            return told(http, 500, error_body("the server failed", "server_error"))


def _explained(error: RequestValidationError) -> tuple[str, str | None]:
    """One sentence about the first mistake of a body, and the parameter it is in."""
    # of what may be one thing or another every way is told: the one that got furthest is what was meant
    first = max(error.errors(), key=lambda each: len(each["loc"]))
    where = [str(part) for part in first["loc"] if part not in ("body", "query", "path")]
    param = ".".join(where) or None
    if first["type"] == "extra_forbidden":
        return f"the parameter {param} isn't supported here; leave it out", param
    if first["type"] == "missing":
        return f"the parameter {param} is missing", param
    if first["type"] in ("json_invalid", "model_attributes_type"):
        return f"the body is not the JSON object that is expected: {first['msg']}", None
    message = first["msg"].removeprefix("Value error, ")
    return (f"{param}: {message}" if param else message), param


def _endpoint(http: Request) -> str:
    return {"/v1/chat/completions": "chat", "/v1/completions": "completion"}.get(http.url.path, "other")


def _model(served: Served) -> dict[str, Any]:
    return {
        "id": served.name,
        "object": "model",
        "created": served.started,
        "owned_by": "taslak",
        "max_model_len": served.model.target.context,
        "speculation": {
            "methods": list(served.model.engine.drafters),
            "draft": served.model.draft_name,
            "gamma": served.model.gamma,
            "verify": served.model.verify,
        },
    }
