"""From settings to a service: used by the process and by the Serve replica."""

from __future__ import annotations

from pathlib import Path

from deployments.drafter.checkpoint import load_draft
from deployments.drafter.engine import DraftEngine, EngineLimits
from deployments.drafter.service import DrafterService
from deployments.drafter.settings import DEFAULT_KV_MEMORY_MIB, DraftSettings
from deployments.link.settings import LinkSettings


def build_engine(
    settings: DraftSettings, *, draft: Path, verifier: Path, verifier_max_model_len: int | None = None
) -> DraftEngine:
    """Load a draft and make the engine for it.

    Args:
        settings: the draft's settings.
        draft: its folder.
        verifier: the verifier's checkpoint folder.
        verifier_max_model_len: the verifier's context; slots need not be longer.

    Raises:
        DraftError: the draft cannot be loaded.
        ValueError: the KV memory is too small for one session.
    """
    loaded = load_draft(
        draft,
        verifier,
        device="cuda" if settings.on_gpu else "cpu",
        dtype=settings.dtype,
        quantise=settings.runs_int8(),
    )
    bounds = [bound for bound in (settings.max_context, verifier_max_model_len) if bound is not None]
    limits = EngineLimits(
        max_sessions=settings.max_sessions,
        max_context=min(bounds) if bounds else None,
        kv_memory_mib=settings.kv_memory_mib or DEFAULT_KV_MEMORY_MIB,
        prefill_chunk=settings.prefill_chunk,
    )
    return DraftEngine(loaded.forward, limits)


def build_service(
    settings: DraftSettings,
    *,
    draft: Path,
    verifier: Path,
    verifier_max_model_len: int | None = None,
    bind_host: str = "127.0.0.1",
    advertise_host: str | None = None,
    link: LinkSettings | None = None,
) -> DrafterService:
    """Load a draft and make the service for it; not started.

    Args:
        settings: the draft's settings.
        draft: its folder.
        verifier: the verifier's checkpoint folder.
        verifier_max_model_len: the verifier's context; slots need not be longer.
        bind_host: IP address to listen on.
        advertise_host: host that verifiers connect to, if it differs.
        link: deadlines and bounds of the link.

    Raises:
        DraftError: the draft cannot be loaded.
        ValueError: the KV memory is too small for one session.
        LinkError: the address cannot be bound.
    """
    return DrafterService(
        build_engine(settings, draft=draft, verifier=verifier, verifier_max_model_len=verifier_max_model_len),
        bind_host=bind_host,
        advertise_host=advertise_host,
        link=link,
        idle_session_s=settings.idle_session_s,
        threads=settings.threads,
    )
