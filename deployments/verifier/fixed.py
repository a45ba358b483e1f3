"""A verifier replica in which one of vLLM's own ways proposes: no drafts, no link, nothing to choose."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

from ray.serve.handle import DeploymentHandle
from ray.serve.llm import LLMConfig

from deployments.models import check_head, resolve_model
from deployments.verifier import engine_stats
from deployments.verifier.annotate import FIXED_DOMAIN, summarise_fixed
from deployments.verifier.methods import ProposerSettings
from deployments.verifier.reporting import ReportingVerifier


class FixedVerifier(ReportingVerifier):
    """A verifier whose engine proposes for itself, in the same way for every request."""

    async def __init__(  # type: ignore[misc]  # Serve awaits constructors
        self,
        llm_config: LLMConfig,
        *,
        proposer: dict[str, Any],
        model: str,
        cpu_cores: list[int] | None,
        base_folder: str | None,
        registry: DeploymentHandle,
    ) -> None:
        """Find the models and start the engine.

        Args:
            llm_config: model and engine.
            proposer: `ProposerSettings` as plain JSON types.
            model: model source of the verifier.
            cpu_cores: cores that compute, where they are named.
            base_folder: where relative model folders start.
            registry: handle of the registry.

        Raises:
            ModelSourceError: a model cannot be found.
            IncompatibleDraft: the head was not made for this verifier.
        """
        base = Path(base_folder) if base_folder else None
        self._proposer = ProposerSettings.model_validate(proposer)
        folder = resolve_model(model, base=base)
        llm_config.engine_kwargs["speculative_config"] = self._proposer.speculative_config()
        if self._proposer.model is not None:
            head = resolve_model(self._proposer.model, base=base)
            check_head(
                folder,
                head,
                self._proposer.method,
                self._proposer.num_speculative_tokens,
                other_vocabulary=self._proposer.maps_vocabularies,
            )
            llm_config.engine_kwargs["speculative_config"]["model"] = str(head)
        await super().__init__(llm_config, folder=folder, cpu_cores=cpu_cores, registry=registry)
        await self._begin_reports()

    async def chat(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        """Chat completions; see LLMServer.chat."""
        name = await self._admit(request)
        return self._annotated(name, await super().chat(request, raw_request_info))

    async def completions(self, request: Any, raw_request_info: Any = None) -> AsyncGenerator[Any, None]:
        """Text completions; see LLMServer.completions."""
        refused = self._refused(request)
        if refused is not None:
            return refused
        name = await self._admit(request)
        return self._annotated(name, await super().completions(request, raw_request_info))

    async def _admit(self, request: Any) -> str:
        await self._maybe_add_request_id_to_request(request)
        return str(request.request_id)

    async def _summary(self, request: str, answer: Mapping[str, Any]) -> dict[str, Any]:
        metrics = answer.get("metrics") or {}
        return summarise_fixed(request, self._proposer.method, metrics.get("speculative_decoding"))

    def _forget(self, request: str) -> None:
        """Nothing is kept of a request: vLLM counts."""

    async def _snapshot(self) -> dict[str, Any]:
        counted = engine_stats.counted()
        return {
            "acceptance": {self._proposer.method: {FIXED_DOMAIN: counted.pop("acceptance")}},
            "proposer": {
                "method": self._proposer.method,
                "model": self._proposer.model or "",
                "num_speculative_tokens": self._proposer.num_speculative_tokens,
            },
            **counted,
        }
