"""How often drafts are right: by (draft, domain) and position, and by request.

A verifier judges a proposal from the left and stops at the first token it rejects. So a step with `proposed`
tokens of which `accepted` were accepted is `accepted` successes, then one failure if any token was left; the
tokens after it were not judged and say nothing. All rates here are per judged token.
"""

from collections.abc import Mapping
from dataclasses import dataclass

#: No estimate is ever surer than this: one rejection must always be thinkable.
CEILING = 0.98

#: What is left of unused evidence each time it fades.
_FADE = 0.7

#: How fast the share of answered steps follows the last step.
_DELIVERY_RATE = 0.125
#: How fast it returns to 1 while nobody asks, per step.
_FORGIVENESS = 0.01


class AcceptanceCurve:
    """Acceptance of one draft in one domain, by position in the proposal.

    Evidence fades exponentially, per position. A position with little evidence leans on the rate over all
    positions, which itself leans on the prior.

    Args:
        positions: Longest proposal, tokens.
        prior: Rate assumed without evidence, 0 to 1.
        strength: Weight of that assumption, in judged tokens.
        window: Judged tokens after which evidence has faded to 1/e.
    """

    __slots__ = (
        "_decay",
        "_prior",
        "_rates",
        "_strength",
        "_successes",
        "_trials",
        "_used",
        "accepted",
        "by_position",
        "proposed",
        "steps",
    )

    def __init__(self, positions: int, prior: float, strength: float, window: int) -> None:
        self._prior = prior
        self._strength = strength
        self._decay = 1.0 - 1.0 / window
        self._trials = [0.0] * positions
        self._successes = [0.0] * positions
        self._rates: list[float] | None = None
        self.proposed = 0
        self.accepted = 0
        self.steps = 0
        self.by_position = [0] * positions
        self._used = False

    def book(self, proposed: int, accepted: int) -> None:
        """Add one judged proposal. Both counts are in tokens; `accepted <= proposed <= positions`."""
        self.proposed += proposed
        self.accepted += accepted
        self.steps += 1
        self._rates = None
        self._used = True
        decay, trials, successes = self._decay, self._trials, self._successes
        for position in range(min(accepted + 1, proposed)):
            trials[position] = trials[position] * decay + 1.0
            successes[position] *= decay
            if position < accepted:
                successes[position] += 1.0
                self.by_position[position] += 1

    def fade(self) -> None:
        """Forget some of the evidence, unless there was new one since the last call.

        What was seen of an unused draft gets old, and it may have been bad luck: as it fades, the estimate
        returns to the prior, until some request gives the draft another chance.
        """
        if not self._used:
            self._rates = None
            self._trials = [_FADE * tried for tried in self._trials]
            self._successes = [_FADE * won for won in self._successes]
        self._used = False

    def rates(self) -> list[float]:
        """Chance of each position to be accepted, given that all before it were. Do not change the list."""
        if self._rates is None:
            strength = self._strength
            overall = (sum(self._successes) + strength * self._prior) / (sum(self._trials) + strength)
            self._rates = [
                (won + strength * overall) / (tried + strength)
                for won, tried in zip(self._successes, self._trials, strict=True)
            ]
        return self._rates

    def figures(self) -> dict[str, object]:
        """Counters since the start, all of them summable; `by_position` counts accepted tokens."""
        return {
            "proposed": self.proposed,
            "accepted": self.accepted,
            "steps": self.steps,
            "by_position": list(self.by_position),
        }


@dataclass(slots=True)
class OwnAcceptance:
    """One request's experience with one draft.

    Attributes:
        trials: Judged tokens, faded.
        successes: Accepted ones among them, faded.
        usual: How many of them the domain's curve would have led one to expect, faded. Comparing with it
            rather than with a plain average keeps a change of length from looking like a change of quality.
    """

    trials: float = 0.0
    successes: float = 0.0
    usual: float = 0.0

    def book(self, proposed: int, accepted: int, rates: list[float], decay: float) -> None:
        """Add one judged proposal, `rates` being the domain's curve."""
        for position in range(min(accepted + 1, proposed)):
            self.trials = self.trials * decay + 1.0
            self.usual = self.usual * decay + rates[position]
            self.successes = self.successes * decay + (1.0 if position < accepted else 0.0)

    def factor(self, strength: float) -> float:
        """By how much this request's acceptance differs from its domain's; 1.0 without evidence."""
        if self.trials < 0.5:
            return 1.0
        usual = self.usual / self.trials
        return (self.successes / usual + strength) / (self.trials + strength)

    def forget_half(self) -> None:
        """Halve the weight of what was seen so far: it was long ago."""
        self.trials *= 0.5
        self.successes *= 0.5
        self.usual *= 0.5


@dataclass(slots=True)
class Delivery:
    """How often a draft that was asked proposed anything at all.

    A late drafter fails all its requests at once, so a step counts once, however many requests it had.

    Attributes:
        share: Faded share of asked requests with a proposal, 0 to 1.
        asked: Requests that asked since the last `settle`.
        answered: Those among them that got a proposal.
    """

    share: float = 1.0
    asked: int = 0
    answered: int = 0

    def book(self, answered: bool) -> None:
        """Add one request that asked."""
        self.asked += 1
        self.answered += answered

    def settle(self) -> None:
        """Take what was booked since the last call as one step; silence without a question is forgiven."""
        if self.asked:
            self.share += _DELIVERY_RATE * (self.answered / self.asked - self.share)
            self.asked = self.answered = 0
        else:
            self.share += _FORGIVENESS * (1.0 - self.share)

    def forgive(self) -> None:
        """The drafter is gone; the one that comes in its place starts afresh."""
        self.share = 1.0
        self.asked = self.answered = 0


class AcceptanceTable:
    """The curves of every (draft, domain) seen so far.

    Args:
        positions: Longest proposal, tokens.
        prior: See `AcceptanceCurve`.
        strength: See `AcceptanceCurve`.
        window: See `AcceptanceCurve`.
    """

    def __init__(self, positions: int, prior: float, strength: float, window: int) -> None:
        self._new = (positions, prior, strength, window)
        self._curves: dict[tuple[str, str], AcceptanceCurve] = {}

    def curve(self, draft: str, domain: str) -> AcceptanceCurve:
        """The curve of a draft in a domain. The caller keeps the names to configured ones."""
        curve = self._curves.get((draft, domain))
        if curve is None:
            curve = self._curves[draft, domain] = AcceptanceCurve(*self._new)
        return curve

    def fade(self) -> None:
        """Let the evidence on unused drafts fade; see `AcceptanceCurve.fade`."""
        for curve in self._curves.values():
            curve.fade()

    def figures(self) -> dict[str, dict[str, dict[str, object]]]:
        """Counters by draft and domain, of those that were ever verified."""
        table: dict[str, dict[str, dict[str, object]]] = {}
        for (draft, domain), curve in sorted(self._curves.items()):
            if curve.steps:
                table.setdefault(draft, {})[domain] = curve.figures()
        return table

    def estimates(self) -> Mapping[str, Mapping[str, list[float]]]:
        """Current rates by draft, domain and position, of those that were ever verified."""
        table: dict[str, dict[str, list[float]]] = {}
        for (draft, domain), curve in sorted(self._curves.items()):
            if curve.steps:
                table.setdefault(draft, {})[domain] = [round(rate, 4) for rate in curve.rates()]
        return table
