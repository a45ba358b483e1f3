"""What goes into the router and what comes out of it."""

from dataclasses import dataclass
from enum import StrEnum

#: The name under which plain decoding appears where a draft's name is expected (headers, summaries).
PLAIN = "none"


class Reason(StrEnum):
    """Why a request decodes the way it does. Stable strings: they are metric labels."""

    DOMAIN = "domain"
    """The draft of the request's domain."""
    GENERALIST = "generalist"
    """The request's domain is the generalist's own, or one that nobody configured a draft for."""
    UNSURE = "unsure"
    """The classifier was not sure enough of any domain."""
    PINNED = "pinned"
    """The caller named the draft, or forbade drafting."""
    NOT_ALLOWED = "not_allowed"
    """The request may not use any draft that would have been chosen."""
    BETTER = "better"
    """This draft is expected to be clearly faster than the one before, or than the domain's."""
    LOW_ACCEPTANCE = "low_acceptance"
    """The verifier kept rejecting the draft before this one for this request."""
    UNANSWERED = "unanswered"
    """The draft before this one was asked again and again and proposed nothing."""
    NOTHING_PAYS = "nothing_pays"
    """No draft is expected to be faster than plain decoding."""
    RECOVERED = "recovered"
    """Drafting, or a draft that was left, pays again."""
    AWAY = "away"
    """The draft that would have been used has no live drafter."""
    RETURNED = "returned"
    """The draft that was away is back."""
    PROBE = "probe"
    """A few steps with a draft that was given up, to see whether it is still bad."""
    LAST_TOKEN = "last_token"
    """At most one token is left to write: nothing to propose."""
    UNKNOWN = "unknown"
    """The router was never told of this request."""


@dataclass(frozen=True, slots=True)
class RequestProfile:
    """What is known of a request before its first step.

    Attributes:
        request_id: Unique among the open requests.
        domain: Name of the domain; one without a configured draft goes to the generalist.
        domain_probability: How sure the classifier is, 0 to 1 (1.0 where the caller named the domain).
        pinned: A draft to use whatever happens, `"none"` to decode plainly, or None for the router's choice.
        allowed: Drafts that the request may use; None means all.
        tenant: Whose request it is; "" where nobody asked.
        length: Tokens that a pinned draft proposes in every step, whatever pays; None for the router's
            choice. For measurements: what a length gives is only known by proposing it.
    """

    request_id: str
    domain: str
    domain_probability: float
    pinned: str | None = None
    allowed: frozenset[str] | None = None
    tenant: str = ""
    length: int | None = None


@dataclass(frozen=True, slots=True)
class Estimate:
    """What one choice is expected to give.

    Attributes:
        draft: The draft, or None for plain decoding.
        length: Tokens proposed per step under this choice (its best length at this batch).
        acceptance: Expected accepted / proposed tokens, 0 to 1; 0.0 for plain decoding.
        tokens_per_second: Expected tokens per second of this one request.
    """

    draft: str | None
    length: int
    acceptance: float
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What one request does in the coming step.

    Attributes:
        draft: The draft to ask, or None to ask nobody.
        length: How many tokens to ask for; 0 exactly when `draft` is None.
        reason: A `Reason`, as its string.
        expected: What each choice that was compared is expected to give; plain decoding comes last.
    """

    draft: str | None
    length: int
    reason: str
    expected: tuple[Estimate, ...] = ()


@dataclass(frozen=True, slots=True)
class DraftUse:
    """A stretch of a request's life.

    Attributes:
        name: The draft, or `"none"` for plain decoding.
        from_token: How many tokens the request had written when the stretch began.
        reason: A `Reason`, as its string.
    """

    name: str
    from_token: int
    reason: str


@dataclass(frozen=True, slots=True)
class RequestSummary:
    """What became of a request, for its response.

    Attributes:
        request_id: As opened.
        domain: As opened.
        domain_probability: As opened.
        drafts: The stretches in order. Bounded: once full, a further stretch overwrites the last one.
        switches: How many stretches there were after the first, counted without a bound.
        proposed: Tokens proposed and verified.
        accepted: Tokens accepted.
        steps: Verifier steps that carried a proposal.
        emitted: Tokens written.
    """

    request_id: str
    domain: str
    domain_probability: float
    drafts: tuple[DraftUse, ...]
    switches: int
    proposed: int
    accepted: int
    steps: int
    emitted: int

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per step that carried a proposal, the verifier's own token counted; 1.0 without any."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0
