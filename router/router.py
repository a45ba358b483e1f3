"""The router: for every request and step, which draft proposes and how many tokens."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from router.acceptance import AcceptanceTable, Delivery, OwnAcceptance
from router.bench import Pick, worth_waiting_for
from router.costs import StepCost, WaitCost
from router.policy import DraftPolicy
from router.prices import Option, Prices, best_length, fixed_length, price_step
from router.request import RequestState
from router.settings import SpeculationSettings
from router.types import PLAIN, Decision, Estimate, Reason, RequestProfile, RequestSummary

#: Domain under which requests without a configured domain are counted.
GENERAL = "general"

#: Tokens proposed while a draft is tried again.
_PROBE_LENGTH = 2
#: Unanswered steps in a row that count against the draft itself; the rest is this request's own trouble
#: (a prompt too long for the draft, say) and must not spoil the draft for others.
_BLAME_DRAFT = 3
#: Decisions after which the evidence on drafts that nobody used fades a little.
_FADE_EVERY = 256
#: How fast the batch's speed-up, which sets the prices, follows what is expected of each step.
_SPEEDUP_RATE = 0.2


class Router:
    """Decides per request and step. One instance serves one verifier replica; not thread-safe.

    Everything remembered is bounded: curves by drafts times domains, cells by their grid, requests by
    `max_requests`.

    Args:
        settings: How to decide.
        domains: Domain -> the draft that proposes for it.
        generalist: The draft for everything else.
        drafts: All drafts of the fleet.

    Raises:
        ValueError: When a domain's draft or the generalist is not among `drafts`.
    """

    def __init__(
        self,
        settings: SpeculationSettings,
        domains: Mapping[str, str],
        generalist: str,
        drafts: Sequence[str],
    ) -> None:
        known = ", ".join(sorted(drafts)) or "none"
        if generalist not in drafts:
            raise ValueError(f"generalist {generalist!r} is not a draft of the fleet; drafts: {known}")
        for domain, draft in domains.items():
            if draft not in drafts:
                raise ValueError(
                    f"domain {domain!r} uses draft {draft!r}, which is not in the fleet; drafts: {known}"
                )
        self._settings = settings
        self._domains = dict(domains)
        self._generalist = generalist
        self._drafts = frozenset(drafts)
        self._policy = DraftPolicy(settings)
        self._acceptance = AcceptanceTable(
            settings.max_draft_tokens,
            settings.prior_acceptance,
            settings.prior_strength,
            settings.acceptance_window,
        )
        self._steps = StepCost(
            settings.max_draft_tokens,
            settings.prior_step_ms / 1e3,
            settings.prior_row_ms / 1e3,
            settings.prior_token_ms / 1e3,
        )
        self._waits = {
            draft: WaitCost(
                settings.max_draft_tokens, settings.prior_wait_ms / 1e3, settings.prior_wait_token_ms / 1e3
            )
            for draft in drafts
        }
        self._delivery = {draft: Delivery() for draft in drafts}
        self._own_decay = 1.0 - 1.0 / settings.request_window
        self._requests: dict[str, RequestState] = {}
        self._forgotten = 0
        self._switches: Counter[str] = Counter()
        self._speedup = 1.0
        self._probe_credit = float(settings.probe_steps)
        self._benched: frozenset[str] = frozenset()
        self._decided = 0

    def __len__(self) -> int:
        """Open requests."""
        return len(self._requests)

    def open(self, profile: RequestProfile) -> None:
        """Begin a request. Opening an id again starts it afresh.

        Raises:
            ValueError: When the profile pins a draft that the fleet does not have, or a length below 1.
        """
        pinned = profile.pinned
        if profile.length is not None and profile.length < 1:
            raise ValueError(f"length {profile.length} must be at least 1; pin {PLAIN!r} to propose nothing")
        if pinned is not None and pinned != PLAIN and pinned not in self._drafts:
            known = ", ".join(sorted(self._drafts))
            raise ValueError(f"pinned draft {pinned!r} is not in the fleet; use one of {known}, or {PLAIN!r}")
        domain = profile.domain if profile.domain in self._domains else GENERAL
        home, reason = self._home(profile)
        wanted = (home, self._generalist) if pinned is None else (pinned,) if pinned != PLAIN else ()
        candidates = tuple(
            dict.fromkeys(d for d in wanted if profile.allowed is None or d in profile.allowed)
        )
        start: str | None = home
        if home not in candidates:
            start, reason = (candidates[0] if candidates else None), Reason.NOT_ALLOWED
        if pinned is not None:
            reason = Reason.PINNED if candidates or pinned == PLAIN else Reason.NOT_ALLOWED
        self._requests.pop(profile.request_id, None)
        if len(self._requests) >= self._settings.max_requests:
            del self._requests[next(iter(self._requests))]
            self._forgotten += 1
        self._requests[profile.request_id] = RequestState(
            profile=profile,
            domain=domain,
            home=start,
            home_reason=reason,
            candidates=candidates,
            curves={draft: self._acceptance.curve(draft, domain) for draft in candidates},
            own={draft: OwnAcceptance() for draft in candidates},
        )

    def book(
        self,
        request_id: str,
        draft: str | None,
        proposed: int,
        accepted: int,
        emitted: int | None = None,
    ) -> None:
        """Book the outcome of a request's last step. Call it for every step of the request, in order.

        Args:
            request_id: An open request; others are ignored.
            draft: The draft that proposed; None when the step carried no proposal of any draft.
            proposed: Tokens that the verifier really had to judge, 0 when the draft was late or gave nothing.
            accepted: Tokens accepted; cut to `proposed`.
            emitted: Tokens that the step wrote; `accepted + 1` when not given.
        """
        state = self._requests.get(request_id)
        if state is None:
            return
        proposed = max(0, min(proposed, self._settings.max_draft_tokens))
        accepted = max(0, min(accepted, proposed))
        state.emitted += accepted + 1 if emitted is None else max(0, emitted)
        asked, state.asked = state.asked, None
        if proposed and draft in state.own:
            own, curve = state.own[draft], state.curves[draft]
            own.book(proposed, accepted, curve.rates(), self._own_decay)
            curve.book(proposed, accepted)
            state.proposed += proposed
            state.accepted += accepted
            state.steps += 1
            state.unanswered = 0
            self._delivery[draft].book(True)
        elif asked is not None:
            state.unanswered += 1
            if state.unanswered <= _BLAME_DRAFT:
                self._delivery[asked].book(False)

    def decide(
        self, requests: Sequence[str], available: Collection[str], tokens_left: Sequence[int]
    ) -> list[Decision]:
        """Decide the coming step of every request of the batch.

        Args:
            requests: The requests that decode in the coming step, in the order of the batch.
            available: Drafts with a live drafter.
            tokens_left: Tokens that each request may still write, as long as `requests`.

        Returns:
            One decision per request, in order. No length exceeds `max_draft_tokens`, nor `tokens_left - 1`.

        Raises:
            ValueError: When the two sequences differ in length.
        """
        if not requests:
            return []
        self._refresh(available)
        live = [draft for draft in self._waits if draft in available]
        prices = self._estimate(len(requests), live)
        picks = self._choose(requests, prices, tokens_left)
        benched = self._compare(picks, prices)
        return [self._explain(pick, benched, prices) for pick in picks]

    def observe_step(self, rows: int, proposed: int, seconds: float) -> None:
        """Book the time of a verifier step of decoding rows only.

        Args:
            rows: Requests in the batch.
            proposed: Tokens proposed for all of them together.
            seconds: Time of the step without the wait for proposals.
        """
        self._steps.observe(rows, proposed, seconds)

    def observe_wait(self, draft: str, length: int, seconds: float) -> None:
        """Book how long a step had to wait for a draft's proposals of `length` tokens; 0.0 if it did not."""
        wait = self._waits.get(draft)
        if wait is not None:
            wait.observe(length, seconds)

    def home(self, request_id: str) -> str | None:
        """The draft an open request will most likely start with, so that it can read the prompt early.

        Decides nothing and remembers nothing; None when the request is not open or may use no draft.
        """
        state = self._requests.get(request_id)
        return state.home if state is not None and state.candidates else None

    def summary(self, request_id: str) -> RequestSummary | None:
        """What became of an open request so far; None when it is not open."""
        state = self._requests.get(request_id)
        return None if state is None else state.summary()

    def close(self, request_id: str) -> RequestSummary | None:
        """Forget a request; returns its summary, or None when it is not open."""
        state = self._requests.pop(request_id, None)
        return None if state is None else state.summary()

    def snapshot(self) -> dict[str, object]:
        """Figures for people and metrics, in plain types.

        Everything under `acceptance` and `switches` only grows and can be summed over verifiers.
        """
        return {
            "acceptance": self._acceptance.figures(),
            "estimates": self._acceptance.estimates(),
            "switches": dict(self._switches),
            "step_cost": self._steps.figures(),
            "waits": {
                draft: {
                    "base_seconds": round(wait.line()[0], 6),
                    "seconds_per_token": round(wait.line()[1], 6),
                    "delivery": round(self._delivery[draft].share, 4),
                }
                for draft, wait in self._waits.items()
            },
            "speedup": round(self._speedup, 4),
            "benched": sorted(self._benched),
            "open_requests": len(self._requests),
            "forgotten_requests": self._forgotten,
        }

    def _refresh(self, available: Collection[str]) -> None:
        """Take in what was booked since the last decision, and who is there."""
        for draft, delivery in self._delivery.items():
            if draft in available:
                delivery.settle()
            else:
                delivery.forgive()
        self._decided += 1
        if self._decided % _FADE_EVERY == 0:
            self._acceptance.fade()
            for wait in self._waits.values():
                wait.fade()

    def _home(self, profile: RequestProfile) -> tuple[str, Reason]:
        if profile.domain_probability < self._settings.unsure_below:
            return self._generalist, Reason.UNSURE
        draft = self._domains.get(profile.domain, self._generalist)
        return draft, Reason.GENERALIST if draft == self._generalist else Reason.DOMAIN

    def _estimate(self, rows: int, live: Sequence[str]) -> Prices:
        """What a proposed token costs in a batch of this size."""
        return price_step(self._steps, self._waits, live, rows, self._speedup)

    def _choose(self, requests: Sequence[str], prices: Prices, tokens_left: Sequence[int]) -> list[Pick]:
        """The draft and length of each request, by itself."""
        probe_steps = self._settings.probe_steps
        self._probe_credit = min(self._probe_credit + self._settings.probe_share, float(probe_steps))
        may_probe = self._probe_credit >= probe_steps
        curious = may_probe and self._steps.unseen(len(requests))
        probing = False
        picks: list[Pick] = []
        for request_id, left in zip(requests, tokens_left, strict=True):
            state = self._requests.get(request_id)
            if state is None:
                picks.append(Pick(None, None, 0, 0.0, Reason.UNKNOWN, False, ()))
                continue
            pick, probes = self._pick(state, prices, left, may_probe, curious)
            probing = probing or probes
            picks.append(pick)
        if probing:
            # All requests whose time has come try in the same steps: the batch then waits once for all.
            self._probe_credit -= probe_steps
        return picks

    def _pick(
        self, state: RequestState, prices: Prices, left: int, may_probe: bool, curious: bool
    ) -> tuple[Pick, bool]:
        state.age += 1
        longest = min(self._settings.max_draft_tokens, left - 1)
        if not state.candidates:
            return Pick(state, None, 0, 0.0, state.home_reason, False, ()), False
        options: dict[str, Option] = {}
        for draft in state.candidates:
            price = prices.price.get(draft)
            if price is not None:
                options[draft] = best_length(
                    draft,
                    state.curves[draft].rates(),
                    state.own[draft].factor(self._settings.request_strength),
                    self._delivery[draft].share,
                    price,
                    max(longest, 1),
                    state.length if draft == state.draft else 0,
                    self._settings.length_gain,
                )
        considered = tuple(options.values())
        if longest < 1:
            return Pick(state, None, 0, 0.0, Reason.LAST_TOKEN, False, considered), False
        if state.profile.pinned is not None:
            return self._pinned(state, options, considered, longest), False
        probes = self._policy.settle(state, options, may_probe, curious)
        if state.probe is not None:
            option = options[state.probe.draft]
            state.probe.steps_left -= 1
            length = min(option.length, _PROBE_LENGTH)
            return Pick(state, option.draft, length, option.accepted, Reason.PROBE, True, considered), probes
        if state.draft is None:
            return Pick(state, None, 0, 0.0, state.reason, False, considered), probes
        option = options[state.draft]
        if longest >= state.length:
            state.length = option.length
        return Pick(
            state, option.draft, option.length, option.accepted, state.reason, False, considered
        ), probes

    def _pinned(
        self,
        state: RequestState,
        options: Mapping[str, Option],
        considered: tuple[Option, ...],
        longest: int,
    ) -> Pick:
        option = options.get(state.candidates[0])
        if option is None:
            return Pick(state, None, 0, 0.0, Reason.AWAY, False, considered)
        if state.profile.length is not None:
            length = min(state.profile.length, longest)
            option = fixed_length(option, state.curves[option.draft].rates(), length)
        state.draft, state.length = option.draft, option.length
        return Pick(state, option.draft, option.length, option.accepted, Reason.PINNED, True, considered)

    def _compare(self, picks: Sequence[Pick], prices: Prices) -> frozenset[str]:
        """Drafts that the batch as a whole is better off not waiting for; also updates the speed-up."""
        verdict = worth_waiting_for(picks, prices, self._steps, self._waits, self._benched)
        self._benched = verdict.benched
        self._speedup += _SPEEDUP_RATE * (max(1.0, verdict.speedup) - self._speedup)
        return verdict.benched

    def _explain(self, pick: Pick, benched: frozenset[str], prices: Prices) -> Decision:
        """The decision, with what was compared; notes changes of draft."""
        state = pick.state
        rate = 1.0 / prices.plain_s
        expected = [
            Estimate(
                option.draft,
                option.length,
                option.accepted / option.length,
                (1.0 + option.accepted) / prices.seconds[option.draft][option.length],
            )
            for option in pick.considered
        ]
        expected.append(Estimate(None, 0, 0.0, rate))
        if state is None or pick.reason is Reason.LAST_TOKEN:
            return Decision(None, 0, pick.reason.value, tuple(expected))
        if pick.draft in benched and not pick.forced:
            state.asked = None
            state.benched += 1
            if state.benched >= self._settings.min_dwell_steps:
                self._note_use(state, None, Reason.NOTHING_PAYS)
            return Decision(None, 0, Reason.NOTHING_PAYS.value, tuple(expected))
        self._note_use(state, pick.draft, pick.reason)
        state.benched = 0
        state.asked = pick.draft
        return Decision(pick.draft, pick.length, pick.reason.value, tuple(expected))

    def _note_use(self, state: RequestState, draft: str | None, reason: Reason) -> None:
        if state.note_use(draft, reason, self._settings.max_switches):
            self._switches[reason.value] += 1
