"""Which draft a request is with: when it stays, leaves, returns and tries again."""

from collections.abc import Mapping

from router.prices import Option
from router.request import GivenUp, Probe, RequestState
from router.settings import SpeculationSettings
from router.types import Reason

#: Tries of a draft that was given up get rarer by doubling, this often at most.
_MOST_DOUBLINGS = 4


class DraftPolicy:
    """Moves a request from draft to draft.

    Moves that something forces (a draft is away, keeps being rejected, does not answer) happen at once. Moves
    that merely look better need a clear gain, and time since the last move.

    Args:
        settings: The router's settings.
    """

    def __init__(self, settings: SpeculationSettings) -> None:
        self._settings = settings

    def settle(
        self, state: RequestState, options: Mapping[str, Option], may_probe: bool, curious: bool = False
    ) -> bool:
        """Bring `state.draft` (and `state.probe`) up to date for the coming step.

        Args:
            state: The request; changed in place.
            options: Its candidates that are available, at their best length.
            may_probe: Whether the batch can afford that a try begins in this step.
            curious: Whether nobody knows what proposals cost at this batch size: a request that decodes
                plainly then tries at once.

        Returns:
            True when a try began.
        """
        if state.given_up:
            self._forgive(state, options)
        if state.probe is not None and self._probing(state, options):
            return False
        if not state.started:
            self._begin(state, options)
        elif not self._forced(state, options) and state.age - state.since >= self._dwell(state):
            self._prefer(state, options)
        return may_probe and self._try_again(state, options, curious)

    def _begin(self, state: RequestState, options: Mapping[str, Option]) -> None:
        choice = self._best(state, options)
        missing = state.home is not None and state.home not in options
        if missing:
            state.away = state.home
        if choice is None or choice.gain <= 0.0:
            state.go_to(None, Reason.AWAY if missing else Reason.NOTHING_PAYS)
            self._schedule_plain_retry(state)
        elif choice.draft == state.home:
            state.go_to(choice.draft, state.home_reason)
        else:
            state.go_to(choice.draft, Reason.AWAY if missing else Reason.BETTER)

    def _forced(self, state: RequestState, options: Mapping[str, Option]) -> bool:
        """Leave a draft that cannot be stayed with; True when the request moved."""
        draft = state.draft
        if draft is None:
            return False
        if draft not in options:
            state.away = draft
            self._move_on(state, options, Reason.AWAY)
            return True
        own, settings = state.own[draft], self._settings
        if state.unanswered >= settings.unanswered_steps:
            reason = Reason.UNANSWERED
        elif own.trials >= settings.min_trials and own.successes < settings.min_acceptance * own.trials:
            reason = Reason.LOW_ACCEPTANCE
        else:
            return False
        self._give_up(state, draft, reason is Reason.UNANSWERED)
        self._move_on(state, options, reason)
        return True

    def _prefer(self, state: RequestState, options: Mapping[str, Option]) -> None:
        """Take what is clearly better than what the request has."""
        away = state.away
        if away is not None and away in options:
            state.away = None
            if away not in state.given_up and options[away].gain > 0.0:
                state.go_to(away, Reason.RETURNED)
                return
        best, least = self._best(state, options), self._settings.switch_gain
        if state.draft is None:
            if best is not None and best.gain > least:
                state.plain_failures = 0
                state.go_to(best.draft, Reason.RECOVERED)
            return
        current = options[state.draft]
        enough = max(1.0 + current.gain, 0.0) * (1.0 + least)
        if best is not None and best.draft != current.draft and best.gain > 0.0 and 1.0 + best.gain > enough:
            state.changes += 1
            state.go_to(best.draft, Reason.BETTER)
        elif current.gain < 0.0:
            state.go_to(None, Reason.NOTHING_PAYS)
            self._schedule_plain_retry(state)

    def _try_again(self, state: RequestState, options: Mapping[str, Option], curious: bool) -> bool:
        """Begin a try of a draft that was given up, when its time has come."""
        draft: str | None = None
        for name, given_up in state.given_up.items():
            if name in options and name != state.draft and state.age >= given_up.retry_at:
                draft = name
                break
        if draft is None and state.draft is None and (curious or state.age >= state.retry_plain_at):
            best = self._best(state, options)
            draft = best.draft if best is not None else None
        if draft is None and state.benched >= self._settings.probe_after_steps:
            # The wait that keeps the whole batch from asking this draft may be long outdated.
            draft, state.benched = state.draft, 0
        if draft is None or draft not in options:
            return False
        state.own[draft].forget_half()
        state.unanswered = 0
        state.probe = Probe(draft, self._settings.probe_steps)
        return True

    def _probing(self, state: RequestState, options: Mapping[str, Option]) -> bool:
        """Go on with the try under way; False when it is over, with its result drawn."""
        probe = state.probe
        assert probe is not None
        if probe.draft in options and probe.steps_left > 0:
            return True
        state.probe = None
        answered = state.unanswered < self._settings.probe_steps
        state.unanswered = 0
        option = options.get(probe.draft)
        own = state.own[probe.draft]
        accepted = own.successes >= self._settings.min_acceptance * max(own.trials, 1.0)
        good = option is not None and answered and accepted
        if probe.draft in state.given_up:
            if good:
                del state.given_up[probe.draft]
            else:
                self._give_up(state, probe.draft, not answered)
        if state.draft is None:
            state.plain_failures += 1
            self._schedule_plain_retry(state)
            if good and option is not None and option.gain > self._settings.switch_gain:
                state.plain_failures = 0
                state.go_to(probe.draft, Reason.RECOVERED)
        return False

    def _forgive(self, state: RequestState, options: Mapping[str, Option]) -> None:
        """A draft that did not answer and is away now was dying; when it is back it starts afresh."""
        for draft in [d for d, g in state.given_up.items() if g.unanswered and d not in options]:
            del state.given_up[draft]
            state.away = draft

    def _give_up(self, state: RequestState, draft: str, unanswered: bool) -> None:
        before = state.given_up.get(draft)
        failures = 0 if before is None else min(before.failures + 1, _MOST_DOUBLINGS)
        retry_at = state.age + (self._settings.probe_after_steps << failures)
        state.given_up[draft] = GivenUp(retry_at, unanswered, failures)

    def _schedule_plain_retry(self, state: RequestState) -> None:
        doublings = min(state.plain_failures, _MOST_DOUBLINGS)
        state.retry_plain_at = state.age + (self._settings.probe_after_steps << doublings)

    def _move_on(self, state: RequestState, options: Mapping[str, Option], reason: Reason) -> None:
        best = self._best(state, options)
        if best is not None and best.gain > 0.0:
            state.go_to(best.draft, reason)
        else:
            state.go_to(None, reason)
            self._schedule_plain_retry(state)

    def _best(self, state: RequestState, options: Mapping[str, Option]) -> Option | None:
        """The best option not given up; the home draft unless another is clearly better."""
        best: Option | None = None
        for option in options.values():
            if option.draft not in state.given_up and (best is None or option.gain > best.gain):
                best = option
        if best is None or state.home is None or best.draft == state.home:
            return best
        home = options.get(state.home)
        if home is None or home.draft in state.given_up:
            return best
        close = 1.0 + best.gain <= (1.0 + home.gain) * (1.0 + self._settings.switch_gain)
        return home if close else best

    def _dwell(self, state: RequestState) -> int:
        return self._settings.min_dwell_steps << min(state.changes, _MOST_DOUBLINGS)
