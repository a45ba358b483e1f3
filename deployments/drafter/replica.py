"""A drafter as a Ray Serve replica. Serve watches and restarts it; tokens never pass through Serve."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from ray.serve.handle import DeploymentHandle

from deployments.drafter.settings import DraftSettings
from deployments.link.settings import LinkSettings

if TYPE_CHECKING:
    from deployments.drafter.announce import Announcer
    from deployments.drafter.service import DrafterService

logger = logging.getLogger(__name__)

# Longest wait for the registry's answer, in seconds.
_REGISTRY_S = 2.0


class Drafter:
    """One replica of one draft.

    Args:
        name: the draft's name in the configuration.
        settings: the draft's settings.
        base_folder: folder against which relative model paths are tried first.
        verifier_model: model source of the verifier, whose embedding and head the draft may share.
        verifier_max_model_len: the verifier's context in tokens; None is its model's own.
        link: deadlines and bounds of the link.
        registry: handle of the registry.

    Raises:
        ModelSourceError: a model cannot be found.
        IncompatibleDraft: the draft's token ids do not mean what the verifier's mean.
        DraftError: the draft cannot be loaded.
    """

    def __init__(
        self,
        name: str,
        settings: DraftSettings,
        base_folder: str | None,
        verifier_model: str,
        verifier_max_model_len: int | None,
        link: LinkSettings,
        registry: DeploymentHandle,
    ) -> None:
        # Serve calls __del__ also when __init__ failed.
        self._service: DrafterService | None = None
        self._announcer: Announcer | None = None
        if settings.cpu_cores is not None:
            pin_process(settings.cpu_cores)
        # Importing PyTorch is most of a drafter's start: not before it keeps to its cores, since the
        # verifier starts at the same time on its own.
        from deployments.drafter.announce import Announcer
        from deployments.drafter.layers import resolve_draft
        from deployments.models import check_compatible, resolve_model

        base = Path(base_folder) if base_folder else None
        verifier = resolve_model(verifier_model, base=base)
        draft = resolve_draft(settings.model, verifier, base=base)
        warning = check_compatible(verifier, draft, max_model_len=verifier_max_model_len)
        if warning:
            logger.warning(warning)
        node = ray.util.get_node_ip_address()
        self._service = _on_this_node(settings, draft, verifier, verifier_max_model_len, link, node)
        self._service.start()
        self._service.wait_ready()
        about = {
            "draft": name,
            "replica": serve.get_replica_context().replica_tag,
            "pid": os.getpid(),
            "node": node,
            "model": settings.model,
        }
        self._announcer = Announcer(
            self._service,
            about,
            lambda report: registry.announce.remote(report).result(timeout_s=_REGISTRY_S),
        )
        self._announcer.start()

    def check_health(self) -> None:
        """Called by Serve every few seconds; raising lets Serve replace the replica.

        Raises:
            RuntimeError: the service or the announcements ended, or the service hangs.
        """
        assert self._service is not None
        assert self._announcer is not None
        self._service.check_health()
        if not self._announcer.alive:
            raise RuntimeError("the drafter no longer announces itself")

    def stats(self) -> dict[str, Any]:
        """What the service counts (`DrafterService.stats`)."""
        assert self._service is not None
        return self._service.stats()

    def __del__(self) -> None:
        if self._announcer is not None:
            self._announcer.stop(timeout_s=0.5)
        if self._service is not None:
            self._service.stop(timeout_s=1.0)


def pin_process(cores: Sequence[int]) -> None:
    """Keep every thread of this process, and those to come, on the given cores.

    Raises:
        ValueError: the node has no such core; the text names those it has.
    """
    present = os.cpu_count() or 1
    wrong = [core for core in cores if core >= present]
    if wrong:
        raise ValueError(f"cpu_cores {wrong} do not exist: this node has cores 0 to {present - 1}")
    for thread in os.listdir("/proc/self/task"):  # sched_setaffinity pins one thread, not a process
        try:
            os.sched_setaffinity(int(thread), cores)
        except ProcessLookupError:
            continue
        except OSError as error:
            raise ValueError(f"this node does not let us use cpu_cores {list(cores)}: {error}") from error


def _on_this_node(
    settings: DraftSettings,
    draft: Path,
    verifier: Path,
    verifier_max_model_len: int | None,
    link: LinkSettings,
    node: str,
) -> DrafterService:
    """A service that listens on the node's address, or on all where that one is not bound to an interface."""
    from deployments.drafter.build import build_service
    from deployments.link.server import LinkError

    def build(bind_host: str) -> DrafterService:
        return build_service(
            settings,
            draft=draft,
            verifier=verifier,
            verifier_max_model_len=verifier_max_model_len,
            bind_host=bind_host,
            advertise_host=node,
            link=link,
        )

    try:
        return build(node)
    except LinkError:
        return build("0.0.0.0")
