"""A fleet in miniature: drafts that are right with a known chance, a verifier whose steps take a known time.

It drives a real `Router` the way the proposer does, on a clock of its own, with a fixed seed: a trace of
hundreds of steps replays in milliseconds and always the same.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from router.router import Router
from router.settings import SpeculationSettings
from router.types import Decision, RequestProfile

DOMAINS = {"general": "general", "code": "code", "medical": "medical"}
DRAFTS = ("general", "code", "medical")

#: (draft, domain of the request, tokens it has written) -> chance that the draft's next token is right.
Acceptance = Callable[[str, str, int], float]


def cpu_step(rows: int, proposed: int) -> float:
    """Seconds of a step, after what was measured on two cores: memory-bound at 1 row, compute-bound at 16."""
    return 0.034 + 0.0042 * rows + 0.0038 * proposed


def gpu_step(rows: int, proposed: int) -> float:
    """Seconds of a step of a big verifier: free up to 256 tokens, then in proportion."""
    return 0.020 * max(1.0, (rows + proposed) / 256)


def quick_wait(draft: str, length: int) -> float:
    """Seconds until a draft's proposals are there."""
    return 0.002 + 0.0015 * length


def by_draft(**rates: float) -> Acceptance:
    """Drafts that are equally good at everything."""
    return lambda draft, domain, written: rates[draft]


@dataclass
class Trace:
    """What happened: per step the decisions by request, the tokens written, the seconds gone."""

    decisions: list[dict[str, Decision]] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def of(self, request_id: str) -> list[Decision]:
        return [step[request_id] for step in self.decisions if request_id in step]

    def rate(self, first: int = 0) -> float:
        """Tokens per second from step `first` on."""
        return sum(self.tokens[first:]) / sum(self.seconds[first:])

    def switches(self, request_id: str) -> int:
        drafts = [decision.draft for decision in self.of(request_id)]
        return sum(a != b for a, b in pairwise(drafts))


class Simulation:
    """Requests, a router, and the world that it does not see."""

    def __init__(
        self,
        acceptance: Acceptance,
        *,
        step: Callable[[int, int], float] = cpu_step,
        wait: Callable[[str, int], float] = quick_wait,
        noise: float = 0.05,
        seed: int = 0,
        settings: SpeculationSettings | None = None,
        domains: Mapping[str, str] = DOMAINS,
        drafts: Sequence[str] = DRAFTS,
    ) -> None:
        self.settings = settings or SpeculationSettings()
        self.router = Router(self.settings, domains, "general", drafts)
        self.acceptance, self.step, self.wait, self.noise = acceptance, step, wait, noise
        self.available: set[str] = set(drafts)
        self.silent: set[str] = set()
        self.written: dict[str, int] = {}
        self.domain: dict[str, str] = {}
        self._random = random.Random(seed)

    def open(self, request_id: str, domain: str = "medical", **profile: object) -> None:
        profile.setdefault("domain_probability", 0.9)
        self.router.open(RequestProfile(request_id, domain, **profile))  # type: ignore[arg-type]
        self.written[request_id] = 0
        self.domain[request_id] = domain

    def close(self, request_id: str) -> None:
        del self.written[request_id]
        self.router.close(request_id)

    def run(self, steps: int) -> Trace:
        trace = Trace()
        for _ in range(steps):
            ids = list(self.written)
            decisions = self.router.decide(ids, self.available, [10_000] * len(ids))
            longest: dict[str, int] = {}
            proposals: list[int] = []
            for decision in decisions:
                heard = decision.draft is not None and decision.draft not in self.silent
                proposals.append(decision.length if heard else 0)
                if decision.draft is not None:
                    longest[decision.draft] = max(decision.length, longest.get(decision.draft, 0))
            waits = {
                d: 0.04 if d in self.silent else self._noisy(self.wait(d, k)) for d, k in longest.items()
            }
            seconds = self._noisy(self.step(len(ids), sum(proposals)))
            for draft, waited in waits.items():
                self.router.observe_wait(draft, longest[draft], waited)
            self.router.observe_step(len(ids), sum(proposals), seconds)
            tokens = 0
            for request_id, decision, proposed in zip(ids, decisions, proposals, strict=True):
                accepted = self._accept(request_id, decision.draft, proposed)
                self.router.book(request_id, decision.draft, proposed, accepted, accepted + 1)
                self.written[request_id] += accepted + 1
                tokens += accepted + 1
            trace.decisions.append(dict(zip(ids, decisions, strict=True)))
            trace.tokens.append(tokens)
            trace.seconds.append(seconds + max(waits.values(), default=0.0))
        return trace

    def plain_rate(self, rows: int) -> float:
        return rows / self.step(rows, 0)

    def _accept(self, request_id: str, draft: str | None, proposed: int) -> int:
        accepted = 0
        while accepted < proposed:
            assert draft is not None
            chance = self.acceptance(draft, self.domain[request_id], self.written[request_id] + accepted)
            if self._random.random() >= chance:
                break
            accepted += 1
        return accepted

    def _noisy(self, seconds: float) -> float:
        # Skewed like real step times: never much faster than usual, now and then much slower.
        slow = 4.0 if self._random.random() < 0.01 else 1.0
        return seconds * slow * (1.0 + self.noise * self._random.random())


def best_fixed_rate(
    simulation: Simulation, rates: Mapping[str, float], rows: int, longest: int = 16
) -> tuple[str | None, int, float]:
    """The best single (draft, length) for constant acceptance, and its tokens per second, by enumeration."""
    best: tuple[str | None, int, float] = (None, 0, simulation.plain_rate(rows))
    for draft, rate in rates.items():
        for length in range(1, min(longest, simulation.settings.max_draft_tokens) + 1):
            tokens = rows * sum(rate**i for i in range(length + 1))
            seconds = simulation.step(rows, rows * length) + simulation.wait(draft, length)
            if tokens / seconds > best[2]:
                best = (draft, length, tokens / seconds)
    return best
