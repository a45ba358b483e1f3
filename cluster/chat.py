"""A conversation with the fleet in the terminal."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console

from cluster.api import ApiProblem, FleetApi

HELP = "/new forgets the conversation, /quit (or Ctrl-D) ends; Ctrl-C stops an answer."


def run(api: FleetApi, console: Console, *, domain: str | None, draft: str | None) -> None:
    """Reads lines and streams answers until the user ends it.

    Raises:
        ApiProblem: the fleet does not answer at all.
    """
    console.print(f"Talking to [bold]{api.model}[/]. {HELP}", style="dim", highlight=False)
    messages: list[dict[str, str]] = []
    while True:
        try:
            line = console.input("[bold cyan]> [/]").strip()
        except (EOFError, KeyboardInterrupt):
            console.print()
            return
        if line in ("/quit", "/exit"):
            return
        if line == "/new":
            messages.clear()
        elif line.startswith("/"):
            console.print(HELP, style="dim")
        elif line:
            messages.append({"role": "user", "content": line})
            _answer(api, console, messages, domain, draft)


def _answer(
    api: FleetApi, console: Console, messages: list[dict[str, str]], domain: str | None, draft: str | None
) -> None:
    """Streams one answer and adds it to the conversation; a refused question is taken back."""
    text = ""
    last: dict[str, Any] = {}
    begun = time.perf_counter()
    try:
        for chunk in api.stream(messages, domain=domain, draft=draft):
            for choice in chunk.get("choices", ()):
                piece = choice["delta"].get("content") or ""
                text += piece
                console.print(piece, end="", markup=False, highlight=False, soft_wrap=True)
            if chunk.get("usage"):
                last = chunk
    except KeyboardInterrupt:
        console.print(" [dim](stopped)[/]", end="")
    except ApiProblem as problem:
        console.print(f"[red]{problem}[/]", highlight=False)
        if not text:
            messages.pop()
            return
    console.print()
    messages.append({"role": "assistant", "content": text})
    if last:
        console.print(summary(last, time.perf_counter() - begun), style="dim", highlight=False)


def summary(chunk: dict[str, Any], seconds: float) -> str:
    """One line on how an answer came about, from the last chunk of its stream."""
    tokens = int(chunk["usage"]["completion_tokens"])
    rate = f"{tokens} tokens, {tokens / seconds:.1f} tokens/s"
    told = chunk.get("specfleet")
    if not told:
        return rate
    drafts = ", ".join(dict.fromkeys(str(each["name"]) for each in told["drafts"])) or "none"
    length = float(told["mean_acceptance_length"])
    return f"{rate}; domain {told['domain']}, draft {drafts}, mean acceptance length {length:.2f}"
