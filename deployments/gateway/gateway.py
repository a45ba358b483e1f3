"""The gateway: the fleet's OpenAI-compatible web interface.

On Ray Serve LLM's ingress, whose way of calling the verifier it keeps, but with its own application: every
error in OpenAI's form, nothing let in from outside that only the fleet may decide, and a call that ends in
the verifier when it ends here.
"""

import time
from collections.abc import AsyncGenerator, Callable, Collection, Mapping
from typing import Any

from fastapi import FastAPI
from pydantic import BaseModel
from ray import serve
from ray.llm._internal.serve.core.configs.openai_api_models import (
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    DetokenizeResponse,
    TokenizeChatRequest,
    TokenizeCompletionRequest,
    TokenizeResponse,
)
from ray.llm._internal.serve.core.ingress.utils import (
    NON_STREAMING_RESPONSE_TYPES,
    _sanitize_chat_completion_request,
)
from ray.llm._internal.serve.core.protocol import RawRequestInfo
from ray.serve import Application
from ray.serve.handle import DeploymentHandle
from ray.serve.llm.ingress import OpenAiIngress, make_fastapi_ingress
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from deployments.gateway import metrics
from deployments.gateway.answers import EventStream, refusal
from deployments.gateway.calls import ask
from deployments.gateway.errors import ApiError, from_exception, unavailable
from deployments.gateway.fleet_view import FleetView, health
from deployments.gateway.screening import (
    engine_request_id,
    passed_headers,
    read_json,
    request_id,
    validate,
)
from deployments.gateway.settings import GatewaySettings
from deployments.gateway.shell import Shell

_PLAIN_ANSWERS = (*NON_STREAMING_RESPONSE_TYPES, TokenizeResponse, DetokenizeResponse)

# Method of the gateway -> its place in the web application.
_ENDPOINTS: dict[str, Callable[[FastAPI], Callable]] = {
    "get_models": lambda app: app.get("/v1/models"),
    "get_model": lambda app: app.get("/v1/models/{model:path}"),
    "post_chat": lambda app: app.post("/v1/chat/completions"),
    "post_completions": lambda app: app.post("/v1/completions"),
    "post_tokenize": lambda app: app.post("/tokenize"),
    "post_detokenize": lambda app: app.post("/detokenize"),
    "get_health": lambda app: app.get("/health"),
    "get_metrics": lambda app: app.get("/metrics"),
    "get_status": lambda app: app.get("/specfleet/status"),
}


class Gateway(OpenAiIngress):
    """One replica of the gateway; use `build_gateway`, which adds the web application.

    Args:
        llm_deployments: model id -> handle of its verifier deployment.
        model_cards: model id -> what /v1/models says of it; the same ids.
        registry: the registry deployment.
        settings: sizes and deadlines.
        domains: names that `x-specfleet-domain` may hold.
        drafts: names that `x-specfleet-draft` may hold, besides `none`.
        method: vLLM's own way to propose, where the verifier has one instead of drafts.
    """

    def __init__(
        self,
        llm_deployments: dict[str, DeploymentHandle],
        model_cards: dict[str, Any],
        registry: DeploymentHandle,
        settings: GatewaySettings,
        domains: Collection[str],
        drafts: Collection[str],
        method: str | None = None,
    ) -> None:
        super().__init__(llm_deployments, model_cards)
        self._method = method
        self._settings = settings
        self._domains = tuple(domains)
        self._drafts = tuple(drafts)
        self._fleet = FleetView(lambda: registry.view.remote(), settings)
        self._created = int(time.time())
        self._ongoing = 0

    async def get_models(self) -> JSONResponse:
        """`GET /v1/models`: the models that can be asked."""
        return JSONResponse({"object": "list", "data": [self._card(name) for name in self._model_cards]})

    async def get_model(self, model: str) -> JSONResponse:
        """`GET /v1/models/{model}`: one of them; `--` may stand for `/` in its name."""
        name = model if model in self._model_cards else model.replace("--", "/")
        return JSONResponse(self._card(self._known_model(name)))

    async def post_chat(self, request: Request) -> Response:
        """`POST /v1/chat/completions`."""
        body = validate(ChatCompletionRequest, await read_json(request))
        try:
            # Without this, parts of messages would stay iterators, which cannot be sent on.
            body = _sanitize_chat_completion_request(body)
        except ValueError:
            message = (
                "messages: content has to be text or a list of content parts, such as {type: text, text: ...}"
            )
            raise ApiError(400, message, param="messages") from None
        return await self._serve("chat", body, request)

    async def post_completions(self, request: Request) -> Response:
        """`POST /v1/completions`."""
        return await self._serve(
            "completions", validate(CompletionRequest, await read_json(request)), request
        )

    async def post_tokenize(self, request: Request) -> Response:
        """`POST /tokenize`: token ids of a `prompt` or of `messages`."""
        data = await read_json(request)
        if "messages" in data:
            return await self._serve("tokenize", validate(TokenizeChatRequest, data), request)
        return await self._serve("tokenize", validate(TokenizeCompletionRequest, data), request)

    async def post_detokenize(self, request: Request) -> Response:
        """`POST /detokenize`: the text of `tokens`."""
        return await self._serve("detokenize", validate(DetokenizeRequest, await read_json(request)), request)

    async def get_health(self) -> JSONResponse:
        """`GET /health`: 200 while a verifier is ready, with `degraded` if a draft is away; else 503."""
        report = health(await self._fleet.get(), self._settings.registry_patience_s)
        if report is None:
            raise unavailable("No verifier is ready.", self._settings.retry_after_s)
        return JSONResponse(report)

    async def get_metrics(self) -> Response:
        """`GET /metrics`: the whole fleet's figures for Prometheus."""
        text = metrics.render(await self._fleet.get(), self._model_cards)
        return Response(text, media_type=metrics.CONTENT_TYPE)

    async def get_status(self) -> JSONResponse:
        """`GET /specfleet/status`: the registry's view, and how old it is."""
        picture = await self._fleet.get()
        if not picture.view:
            raise unavailable("The registry has not answered yet.", self._settings.retry_after_s)
        return JSONResponse({**picture.view, "age_s": picture.age_s, "registry_up": picture.registry_up})

    async def _serve(self, method: str, body: BaseModel, request: Request) -> Response:
        """Have the verifier answer, plainly or as a stream of events."""
        headers = passed_headers(
            request.headers, domains=self._domains, drafts=self._drafts, method=self._method
        )
        model = self._known_model(getattr(body, "model", None))
        if "request_id" in type(body).model_fields:
            body.request_id = engine_request_id(request)  # type: ignore[attr-defined]
        if self._ongoing >= self._settings.max_ongoing_requests:
            message = "The gateway is busy: too many requests at once. Try again shortly."
            raise unavailable(message, self._settings.retry_after_s)
        handle = getattr(self._get_configured_serve_handle(model), method)
        answers = self._counted(
            ask(lambda: handle.remote(body, RawRequestInfo(headers)), self._settings.request_timeout_s)
        )
        stream: EventStream | None = None
        try:
            first = await anext(answers)
            lead = first[0] if isinstance(first, list) and first else first
            if (error := refusal(lead, self._settings.retry_after_s)) is not None:
                raise error
            if isinstance(lead, _PLAIN_ANSWERS):
                return JSONResponse(lead.model_dump())
            stream = EventStream(first, answers, request, self._settings.retry_after_s)
            return stream
        except Exception as error:
            # Here, since Serve puts handlers of its own around the endpoints, which answer in plain text.
            retry_after_s = self._settings.retry_after_s
            raise from_exception(error, request_id=request_id(request), retry_after_s=retry_after_s) from None
        finally:
            if stream is None:
                await answers.aclose()

    async def _counted(self, answers: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
        self._ongoing += 1
        try:
            async for answer in answers:
                yield answer
        finally:
            self._ongoing -= 1
            await answers.aclose()

    def _known_model(self, name: str | None) -> str:
        if name is None and len(self._model_cards) == 1:
            return next(iter(self._model_cards))
        if name not in self._model_cards:
            known = ", ".join(sorted(self._model_cards))
            message = (
                f"The model {name!r} does not exist. Known: {known}." if name else f"Name a model: {known}."
            )
            raise ApiError(404, message, param="model", code="model_not_found")
        return name

    def _card(self, name: str) -> dict[str, Any]:
        return {**self._model_cards[name].model_dump(), "created": self._created}


def build_app(settings: GatewaySettings) -> FastAPI:
    """The web application without its endpoints. No CORS, no API browser."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.add_exception_handler(HTTPException, _plain_http_error)
    app.add_exception_handler(ApiError, _api_error)
    app.add_middleware(Shell, settings=settings)
    return app


def build_gateway_class(settings: GatewaySettings) -> type:
    """`Gateway` with its web application, as a class for `serve.deployment`."""
    return make_fastapi_ingress(Gateway, app=build_app(settings), endpoint_map=_ENDPOINTS)


def build_gateway(
    verifiers: Mapping[str, Application],
    model_cards: Mapping[str, Any],
    registry: Application,
    settings: GatewaySettings,
    domains: Collection[str],
    drafts: Collection[str],
    method: str | None = None,
) -> Application:
    """The gateway as the entrance of the Serve application, with all that it calls.

    Args:
        verifiers: model id -> its verifier deployment.
        model_cards: model id -> Ray Serve LLM's `ModelCard`.
        registry: the registry deployment.
        settings: how many gateways, sizes and deadlines.
        domains: names of the configured domains.
        drafts: names of the configured drafts.
        method: vLLM's own way to propose, where the verifier has one instead of drafts.
    """
    deployment = serve.deployment(
        name="Gateway",
        num_replicas=settings.replicas,
        # Above our own bound: it is ours that refuses, in OpenAI's form, and health checks still pass.
        max_ongoing_requests=settings.max_ongoing_requests + 64,
        max_queued_requests=settings.max_ongoing_requests + 64,
        graceful_shutdown_timeout_s=settings.drain_s,
        health_check_period_s=2,
        health_check_timeout_s=5,
        ray_actor_options={"num_cpus": settings.num_cpus},
    )(build_gateway_class(settings))
    return deployment.bind(
        dict(verifiers), dict(model_cards), registry, settings, list(domains), list(drafts), method
    )


async def _plain_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path
    texts = {404: f"There is nothing at {path}.", 405: f"{path} does not take {request.method}."}
    message = texts.get(error.status_code, str(error.detail))
    return ApiError(error.status_code, message, headers=error.headers).response()


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return error.response()
