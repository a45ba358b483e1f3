"""When a request changes its draft, with the gains dictated rather than estimated."""

from itertools import pairwise

import pytest

from router.acceptance import AcceptanceCurve, OwnAcceptance
from router.policy import DraftPolicy
from router.prices import Option
from router.request import RequestState
from router.settings import SpeculationSettings
from router.types import Reason, RequestProfile

CANDIDATES = ("medical", "general")


def request() -> RequestState:
    return RequestState(
        profile=RequestProfile("r", "medical", 0.9),
        domain="medical",
        home="medical",
        home_reason=Reason.DOMAIN,
        candidates=CANDIDATES,
        curves={draft: AcceptanceCurve(4, 0.4, 8.0, 2000) for draft in CANDIDATES},
        own={draft: OwnAcceptance() for draft in CANDIDATES},
    )


def replay(gains: list[tuple[float, float]], settings: SpeculationSettings) -> list[str | None]:
    """The draft of each step when (medical, general) gain that much."""
    policy, state, drafts = DraftPolicy(settings), request(), []
    for medical, general in gains:
        state.age += 1
        options = {
            "medical": Option("medical", 2, 1.0, medical),
            "general": Option("general", 2, 1.0, general),
        }
        policy.settle(state, options, may_probe=False)
        drafts.append(state.draft)
    return drafts


def changes(drafts: list[str | None]) -> int:
    return sum(a != b for a, b in pairwise(drafts))


def test_small_differences_change_nothing() -> None:
    close = [(0.30, 0.34), (0.34, 0.30)] * 100
    for first, draft in (((0.9, 0.1), "medical"), ((0.1, 0.9), "general")):
        assert set(replay([first, *close], SpeculationSettings(min_dwell_steps=0))) == {draft}


def test_clear_gain_changes_the_draft_after_the_dwell() -> None:
    drafts = replay([(0.3, 0.3)] * 3 + [(0.3, 0.6)] * 20, SpeculationSettings(min_dwell_steps=8))
    assert changes(drafts) == 1
    assert drafts.index("general") == 8


def test_estimates_that_jump_about_cannot_make_a_request_flap() -> None:
    """The dwell doubles with each change, so 2000 steps see a handful of changes instead of hundreds."""
    gains = ([(0.9, 0.1)] * 10 + [(0.1, 0.9)] * 10) * 100
    assert changes(replay(gains, SpeculationSettings(min_dwell_steps=8))) <= 2000 / (8 * 16) + 5
    assert changes(replay(gains, SpeculationSettings(min_dwell_steps=0))) > 100


def test_drafting_near_break_even_does_not_flap() -> None:
    settings = SpeculationSettings(min_dwell_steps=0, switch_gain=0.05)
    drafts = replay([(0.2, -1.0)] + [(-0.01, -1.0), (0.04, -1.0)] * 50, settings)
    assert changes(drafts) == 1  # it stops once, and 4 % are not enough to begin again


@pytest.mark.parametrize(("medical", "general", "draft"), [(0.3, 0.2, "medical"), (0.1, 0.9, "general")])
def test_first_choice_needs_no_dwell(medical: float, general: float, draft: str) -> None:
    assert replay([(medical, general)], SpeculationSettings()) == [draft]


def test_nothing_pays() -> None:
    assert replay([(-0.1, -0.2)], SpeculationSettings()) == [None]
