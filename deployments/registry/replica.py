"""The registry as a Ray Serve deployment: one replica, no tokens, no CPU of its own."""

import os
import time
from collections.abc import Sequence
from typing import Any

from ray import serve
from ray.serve import Application

from deployments.registry.reports import AnnounceAnswer, ReportAnswer
from deployments.registry.state import RegistryState


class Registry:
    """Tells drafters and verifiers of each other and everyone what the fleet does.

    Nothing is stored: after a restart the next round of reports, about a second later, fills it again.

    Args:
        drafts: names of the configured drafts.
        domains: names of the configured domains, or None to take any.
        method: vLLM's own way to propose, where the verifier has one instead of drafts.
    """

    def __init__(
        self, drafts: Sequence[str], domains: Sequence[str] | None = None, method: str | None = None
    ) -> None:
        self._state = RegistryState(drafts, domains, now=time.monotonic(), method=method)

    # All methods are coroutines without an await, so they run one after another and need no lock.

    async def announce(self, report: dict[str, Any]) -> AnnounceAnswer:
        """Take a drafter's announcement (`reports.DrafterReport` as a dictionary), sent about once a second.

        Raises:
            BadReport: the announcement is malformed or its draft is not configured.
        """
        return self._state.announce(report, time.monotonic())

    async def report(self, report: dict[str, Any]) -> ReportAnswer:
        """Take a verifier's report (`reports.VerifierReport` as a dictionary), sent about once a second.

        Raises:
            BadReport: the report is malformed or names a draft or domain that is not configured.
        """
        return self._state.report(report, time.monotonic())

    async def view(self) -> dict[str, Any]:
        """The fleet as plain JSON data.

        `verifiers`: one entry per replica with state, what it does now and its own counters. `drafters`: one
        entry per configured draft with `name`, `state`, `sessions` and `replicas`. `acceptance`: draft ->
        domain -> figures, summed over all verifiers, also past ones. `totals`: link by draft, switches and
        requests by reason, tokens. `registry`: pid, and incarnation and uptime, by which a restart is seen.
        """
        view = self._state.view(time.monotonic())
        view["registry"]["pid"] = os.getpid()
        return view


def build_registry(
    drafts: Sequence[str], domains: Sequence[str] | None = None, method: str | None = None
) -> Application:
    """The registry, ready to be bound into an application: `registry=build_registry(...)`."""
    deployment = serve.deployment(
        name="Registry",
        num_replicas=1,
        max_ongoing_requests=512,
        health_check_period_s=2,
        health_check_timeout_s=5,
        graceful_shutdown_timeout_s=1,
        ray_actor_options={"num_cpus": 0},
    )(Registry)
    return deployment.bind(list(drafts), None if domains is None else list(domains), method)
