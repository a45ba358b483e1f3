"""What must hold whatever happens: any order of events, any batch, any drafts coming and going."""

import sys
from typing import Any

import hypothesis.strategies as st
from hypothesis import given, settings

from router.acceptance import AcceptanceTable
from router.costs import ROW_GRID
from router.router import Router
from router.settings import SpeculationSettings
from router.types import Decision, RequestProfile
from tests.router.simulation import DOMAINS, DRAFTS

NAMES = [f"r{number}" for number in range(12)]
MAX_REQUESTS = 8
MAX_SWITCHES = 4

profiles = st.builds(
    RequestProfile,
    request_id=st.sampled_from(NAMES),
    domain=st.sampled_from(["general", "code", "medical", "law", ""]),
    domain_probability=st.floats(0, 1),
    pinned=st.sampled_from([None, None, None, "none", *DRAFTS]),
    allowed=st.none() | st.frozensets(st.sampled_from(DRAFTS)),
)
seconds = st.floats(0, 10) | st.sampled_from([float("nan"), float("inf"), -1.0])


@st.composite
def steps(draw: st.DrawFn) -> dict[str, Any]:
    rows = draw(st.lists(st.sampled_from(NAMES), max_size=6, unique=True))
    return {
        "open": draw(st.lists(profiles, max_size=3)),
        "rows": rows,
        "available": draw(st.frozensets(st.sampled_from([*DRAFTS, "stranger"]))),
        "left": draw(st.lists(st.integers(-1, 40), min_size=len(rows), max_size=len(rows))),
        "proposed": draw(st.lists(st.integers(0, 20), min_size=len(rows), max_size=len(rows))),
        "accepted": draw(st.lists(st.integers(0, 20), min_size=len(rows), max_size=len(rows))),
        "repeat": draw(st.integers(1, 12)),
        "step_s": draw(seconds),
        "wait_s": draw(seconds),
        "close": draw(st.lists(st.sampled_from(NAMES), max_size=2)),
    }


def check(
    decision: Decision, profile: RequestProfile | None, left: int, available: frozenset[str], longest: int
) -> None:
    assert 0 <= decision.length <= longest
    assert decision.length <= max(0, left - 1)
    assert (decision.draft is None) == (decision.length == 0)
    if profile is None:
        assert decision.draft is None
        return
    if decision.draft is not None:
        assert decision.draft in available
        assert decision.draft in DRAFTS
        assert profile.allowed is None or decision.draft in profile.allowed
    if profile.pinned == "none":
        assert decision.draft is None
    elif profile.pinned is not None:
        usable = profile.pinned in available and (
            profile.allowed is None or profile.pinned in profile.allowed
        )
        assert decision.draft == (profile.pinned if usable and left > 1 else None)


@given(script=st.lists(steps(), max_size=25), longest=st.integers(1, 16))
@settings(max_examples=60, deadline=None)
def test_every_decision_is_within_its_limits(script: list[dict[str, Any]], longest: int) -> None:
    router = Router(
        SpeculationSettings(
            max_draft_tokens=longest,
            max_requests=MAX_REQUESTS,
            max_switches=MAX_SWITCHES,
            min_dwell_steps=1,
            probe_after_steps=3,
            unanswered_steps=2,
            probe_share=0.5,
        ),
        DOMAINS,
        "general",
        DRAFTS,
    )
    opened: dict[str, RequestProfile] = {}
    for step in script:
        for profile in step["open"]:
            router.open(profile)
            opened.pop(profile.request_id, None)
            opened[profile.request_id] = profile
            if len(opened) > MAX_REQUESTS:
                del opened[next(iter(opened))]
        for _ in range(step["repeat"]):
            decisions = router.decide(step["rows"], step["available"], step["left"])
            assert len(decisions) == len(step["rows"])
            for row, (name, decision) in enumerate(zip(step["rows"], decisions, strict=True)):
                check(decision, opened.get(name), step["left"][row], step["available"], longest)
                router.book(name, decision.draft, step["proposed"][row], step["accepted"][row])
                if decision.draft is not None:
                    router.observe_wait(decision.draft, decision.length, step["wait_s"])
            router.observe_step(len(step["rows"]), sum(step["proposed"]), step["step_s"])
        for name in step["close"]:
            assert (router.close(name) is not None) == (opened.pop(name, None) is not None)
        assert len(router) == len(opened) <= MAX_REQUESTS
        for name in opened:
            summary = router.summary(name)
            assert summary is not None
            assert len(summary.drafts) <= MAX_SWITCHES
            assert summary.accepted <= summary.proposed
            assert summary.steps <= summary.proposed


def footprint(thing: object, seen: set[int]) -> int:
    """Objects reachable through the containers and slots of our own classes."""
    if id(thing) in seen or isinstance(thing, str | int | float | bool | type(None)):
        return 0
    seen.add(id(thing))
    if isinstance(thing, dict):
        inner: list[object] = [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set | frozenset):
        inner = list(thing)
    elif type(thing).__module__.startswith("router"):
        slots = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        inner = [getattr(thing, name) for name in slots if hasattr(thing, name)]
        inner += list(getattr(thing, "__dict__", {}).values())
    else:  # a deque of numbers, an enum: its own size counts
        return len(thing) if hasattr(thing, "__len__") else 1
    return 1 + len(inner) + sum(footprint(part, seen) for part in inner)


def test_memory_does_not_grow_with_requests_steps_or_names() -> None:
    """Ten thousand requests of ever new names, domains and batch sizes leave what a few hundred left."""
    router = Router(SpeculationSettings(max_requests=32), DOMAINS, "general", DRAFTS)
    sizes = []
    for number in range(10_000):
        router.open(RequestProfile(f"r{number}", f"domain{number}", 0.9))
        router.open(RequestProfile(f"m{number}", "medical", 0.9))
        rows = 1 + number % 300
        (decision, _) = router.decide([f"m{number}", f"r{number}"], set(DRAFTS), [50, 50])
        router.observe_step(rows, rows * (number % 5), 0.03)
        router.observe_wait("medical", 1 + number % 30, 0.004)
        router.book(f"m{number}", decision.draft, decision.length, decision.length // 2)
        router.book(f"stranger{number}", "medical", 3, 1)
        router.observe_wait(f"stranger{number}", 3, 0.1)
        if number % 2000 == 1999:
            sizes.append(footprint(router, set()))
    assert len(router) == 32
    assert sizes[-1] <= 1.05 * sizes[1]
    assert sizes[-1] < 20_000
    assert len(router.snapshot()["step_cost"]) <= len(ROW_GRID) * 5  # type: ignore[arg-type]


@given(
    proposals=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=60),
    window=st.integers(16, 4000),
)
@settings(deadline=None)
def test_acceptance_estimates_stay_probabilities(proposals: list[tuple[int, int]], window: int) -> None:
    table = AcceptanceTable(6, 0.4, 8.0, window)
    for proposed, accepted in proposals:
        table.curve("d", "x").book(proposed, min(proposed, accepted))
    assert all(0.0 < rate < 1.0 for rate in table.curve("d", "x").rates())
    assert sys.getsizeof(table.curve("d", "x").rates()) < 500
