"""What the router remembers of one open request."""

from dataclasses import dataclass, field

from router.acceptance import AcceptanceCurve, OwnAcceptance
from router.types import PLAIN, DraftUse, Reason, RequestProfile, RequestSummary


@dataclass(slots=True)
class GivenUp:
    """A draft that a request has left for being bad, not for being slow at this batch size.

    Attributes:
        retry_at: Age of the request, in steps, from which the draft may be tried again.
        unanswered: Whether it was given up for not answering; forgiven when it was away and came back.
        failures: Tries that did not help; each doubles the time to the next.
    """

    retry_at: int
    unanswered: bool = False
    failures: int = 0


@dataclass(slots=True)
class Probe:
    """A try under way.

    Attributes:
        draft: The draft tried.
        steps_left: Steps until it ends.
    """

    draft: str
    steps_left: int


@dataclass(slots=True)
class RequestState:
    """One open request.

    Attributes:
        profile: As opened.
        domain: The domain whose evidence it shares; one of the configured names.
        home: The draft it starts with.
        home_reason: Why that one.
        candidates: Drafts it may use, home first; at most two, or the pinned one.
        curves: The domain's acceptance curve of each candidate.
        own: Its own acceptance of each candidate.
        age: Steps decided so far.
        started: Whether a first choice was made.
        draft: The draft it is with; None for plain decoding.
        reason: Why.
        length: Its draft length while nothing cuts it short.
        since: Age at which it came to this draft.
        changes: Changes from one draft to a merely better one; each doubles the time before the next.
        away: The draft that it would be with, were it not away.
        given_up: Drafts it has left.
        probe: The try under way.
        retry_plain_at: Age from which a request that decodes plainly may try a draft again.
        plain_failures: Tries from plain decoding that did not help.
        unanswered: Asked steps in a row without a proposal.
        benched: Steps in a row in which the batch did not let it ask its draft.
        asked: Draft asked in the last decision and not booked yet.
        uses: The stretches so far.
        switches: Stretches after the first.
        proposed: Tokens proposed.
        accepted: Tokens accepted.
        steps: Steps that carried a proposal.
        emitted: Tokens written.
    """

    profile: RequestProfile
    domain: str
    home: str | None
    home_reason: Reason
    candidates: tuple[str, ...]
    curves: dict[str, AcceptanceCurve]
    own: dict[str, OwnAcceptance]
    age: int = 0
    started: bool = False
    draft: str | None = None
    reason: Reason = Reason.UNKNOWN
    length: int = 0
    since: int = 0
    changes: int = 0
    away: str | None = None
    given_up: dict[str, GivenUp] = field(default_factory=dict)
    probe: Probe | None = None
    retry_plain_at: int = 0
    plain_failures: int = 0
    unanswered: int = 0
    benched: int = 0
    asked: str | None = None
    uses: list[DraftUse] = field(default_factory=list)
    switches: int = 0
    proposed: int = 0
    accepted: int = 0
    steps: int = 0
    emitted: int = 0

    def go_to(self, draft: str | None, reason: Reason) -> None:
        """Come to a draft, or to plain decoding (None)."""
        self.draft = draft
        self.reason = reason
        self.since = self.age
        self.unanswered = 0
        self.started = True

    def note_use(self, draft: str | None, reason: Reason, limit: int) -> bool:
        """Remember that the coming step is with this draft; True when that is a change."""
        name = PLAIN if draft is None else draft
        if self.uses and self.uses[-1].name == name:
            return False
        use = DraftUse(name, self.emitted, reason.value)
        if self.uses:
            self.switches += 1
        if len(self.uses) >= limit:
            self.uses[-1] = use
        else:
            self.uses.append(use)
        return True

    def summary(self) -> RequestSummary:
        """What became of the request so far."""
        profile = self.profile
        return RequestSummary(
            request_id=profile.request_id,
            domain=profile.domain,
            domain_probability=profile.domain_probability,
            drafts=tuple(self.uses),
            switches=self.switches,
            proposed=self.proposed,
            accepted=self.accepted,
            steps=self.steps,
            emitted=self.emitted,
        )
