"""A drafter whose proposals a test decides, over the real link: right, wrong, late, or nonsense."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from deployments.link.messages import Proposal, Proposals
from deployments.link.server import LinkServer, Request

Script = Callable[[list[int], int], list[int]]
Misdeed = Callable[["ScriptedDrafter", Request, list[Proposal]], None]


class ScriptedDrafter:
    """Keeps each session's context as a drafter does, and asks `script(context, length)` for proposals."""

    def __init__(self, script: Script, draft: str = "general") -> None:
        self.draft = draft
        self.script = script
        self.misdeed: Misdeed | None = None
        self.contexts: dict[int, list[int]] = {}
        self.asked = 0
        self.server = LinkServer("127.0.0.1")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    @property
    def peer(self) -> dict[str, str]:
        """This drafter as the registry would announce it."""
        return {
            "draft": self.draft,
            "replica": f"{self.draft}-{self.server.incarnation[:8]}",
            "address": self.server.address,
            "public_key": self.server.public_key,
        }

    def admit(self, keys: Sequence[str]) -> None:
        """Let these verifiers in."""
        self.server.admit(keys)

    def stop(self) -> None:
        """End the thread, close the socket."""
        self._stop.set()
        self._thread.join(timeout=10)

    def _run(self) -> None:
        while not self._stop.is_set():
            for request in self.server.poll(0.05):
                answers = self._answer(request)
                if self.misdeed is not None:
                    self.misdeed(self, request, answers)
                else:
                    self.reply(request, answers)
        self.server.close()

    def reply(self, request: Request, answers: list[Proposal], **changes: object) -> None:
        """Send an honest reply, or one with other fields."""
        message = request.message
        fields: dict[str, object] = {
            "drafter": self.server.incarnation,
            "epoch": message.epoch,
            "step": message.step,
            "items": answers,
            "sessions": len(self.contexts),
        }
        self.server.reply(request.peer, Proposals(**{**fields, **changes}))  # type: ignore[arg-type]

    def _answer(self, request: Request) -> list[Proposal]:
        for session in request.message.closed:
            self.contexts.pop(session, None)
        answers = []
        for item in request.message.items:
            known = self.contexts.get(item.session, [])
            if item.base > len(known):
                answers.append(Proposal(item.session, item.position, [], "resync"))
                continue
            context = [*known[: item.base], *item.tokens]
            self.contexts[item.session] = context
            self.asked += item.length > 0
            tokens = self.script(context, item.length)[: item.length] if item.length else []
            answers.append(Proposal(item.session, len(context), tokens))
        return answers
