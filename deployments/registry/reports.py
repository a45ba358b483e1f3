"""What drafters and verifiers tell the registry, what it answers, and how far it trusts them.

Messages are plain dictionaries, so that a sender needs no import of ours and a newer sender may say more than
an older registry knows (unknown top-level keys are ignored). Every report is checked here before it
touches the registry's state.
"""

from typing import Annotated, Any, TypedDict, TypeVar

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt, ValidationError

# A report is a few hundred bytes to a few kilobytes; one far above that is a mistake of its sender.
MAX_REPORT_BYTES = 64 * 1024
# vLLM's own bound is lower; a longer list is not a list of draft positions.
MAX_POSITIONS = 16

Name = Annotated[str, Field(min_length=1, max_length=200)]
# Becomes a Prometheus label, so only short plain words.
Label = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 _.:-]{0,63}$")]
Count = NonNegativeInt
Report = TypeVar("Report", bound=BaseModel)


class BadReport(ValueError):
    """A report was refused; the message names the field and says what was expected."""


class DrafterEntry(TypedDict):
    """All that a verifier needs to connect to one drafter replica."""

    draft: str
    replica: str
    address: str
    public_key: str


class AnnounceAnswer(TypedDict):
    """Answer to a drafter: `client_keys` are the public keys (Z85) of the verifiers it may let in."""

    client_keys: list[str]


class ReportAnswer(TypedDict):
    """Answer to a verifier: every drafter replica that announced itself within the last seconds."""

    drafters: list[DrafterEntry]


class DrafterReport(BaseModel):
    """What one drafter replica says about itself, about once a second."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    draft: Name = Field(description="Name of the draft as the configuration has it.")
    replica: Name = Field(description="Id of this replica, unique in the cluster.")
    address: Name = Field(description="Where the link listens, `tcp://host:port`.")
    public_key: Name = Field(description="CURVE public key of the link's server (Z85 text).")
    pid: Count = Field(description="Process id on its node.")
    node: Annotated[str, Field(max_length=200)] = Field(default="", description="Host name or address.")
    state: Annotated[str, Field(min_length=1, max_length=32)] = Field(
        default="ready", description="`starting`, `ready` or `stopping`; only `ready` ones are handed out."
    )
    sessions: Count = Field(default=0, description="Sessions whose KV this replica holds.")
    stats: Annotated[dict[Name, bool | int | float | str], Field(max_length=64)] = Field(
        default_factory=dict, description="Further figures, shown as they are."
    )
    model: Annotated[str, Field(max_length=500)] = Field(default="", description="Model source of the draft.")


class AcceptanceFigures(BaseModel):
    """How proposals of one draft in one domain fared, counted since the verifier started."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    proposed: Count = Field(default=0, description="Tokens proposed.")
    accepted: Count = Field(default=0, description="Proposed tokens that were accepted.")
    steps: Count = Field(default=0, description="Steps that carried a proposal.")
    by_position: Annotated[list[Count], Field(max_length=MAX_POSITIONS)] = Field(
        default_factory=list,
        description="Accepted tokens at each position of a proposal, first position first.",
    )


class LinkFigures(BaseModel):
    """How the link to one draft's replicas fared; all but `up` are counted since the verifier started."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    sent: Count = Field(default=0, description="Messages sent.")
    answered: Count = Field(default=0, description="Answers that came in time.")
    missed: Count = Field(default=0, description="Messages without an answer at the step's deadline.")
    late: Count = Field(default=0, description="Answers that came after the step's deadline.")
    skipped: Count = Field(default=0, description="Requests not asked about while a drafter was behind.")
    dropped: Count = Field(default=0, description="Messages that were not sent because the pipe was full.")
    resyncs: Count = Field(default=0, description="Times a drafter asked for a context from its beginning.")
    too_long: Count = Field(default=0, description="Contexts longer than the draft's window.")
    busy: Count = Field(default=0, description="Times a drafter had no room for a session.")
    refused: Count = Field(
        default=0, description="Messages refused by the drafter, such as for their version."
    )
    foreign: Count = Field(default=0, description="Answers that belonged to another epoch, step or session.")
    bad: Count = Field(default=0, description="Answers that could not be used.")
    tokens_sent: Count = Field(default=0, description="Tokens sent.")
    bytes_sent: Count = Field(default=0, description="Bytes sent.")
    round_trip_seconds: NonNegativeFloat = Field(
        default=0.0, description="Sum of all round trips, in seconds."
    )
    round_trips: Count = Field(default=0, description="Number of round trips in that sum.")
    drafter_busy_seconds: NonNegativeFloat = Field(
        default=0.0, description="Time that drafters computed for the answers, in seconds."
    )
    up: bool = Field(default=False, description="Whether a replica of this draft answers now.")


class VerifierSnapshot(BaseModel):
    """What one verifier replica has done so far and does now.

    Counters only grow while the replica's engine lives; the registry carries them over restarts. Keys that
    are not listed here are kept and shown in the view as they are.
    """

    model_config = ConfigDict(extra="allow", frozen=True, allow_inf_nan=False)

    acceptance: dict[Name, dict[Name, AcceptanceFigures]] = Field(
        default_factory=dict, description="Draft -> domain -> figures (counters)."
    )
    switches: Annotated[dict[Label, Count], Field(max_length=32)] = Field(
        default_factory=dict, description="Changes of a request's draft, by reason (counters)."
    )
    requests: Annotated[dict[Label, Count], Field(max_length=32)] = Field(
        default_factory=dict, description="Finished requests, by reason (counters)."
    )
    generation_tokens: Count = Field(default=0, description="Tokens generated (counter).")
    prompt_tokens: Count = Field(default=0, description="Prompt tokens processed (counter).")
    link: dict[Name, LinkFigures] = Field(default_factory=dict, description="Draft -> figures of the link.")
    tokens_per_second: NonNegativeFloat = Field(default=0.0, description="Tokens generated per second, now.")
    running: Count = Field(default=0, description="Requests running now.")
    waiting: Count = Field(default=0, description="Requests waiting now.")
    cache: Annotated[dict[Label, float], Field(max_length=32)] = Field(
        default_factory=dict, description="KV cache figures as they are now, such as `usage` from 0 to 1."
    )


class VerifierReport(BaseModel):
    """What one verifier replica says about itself, about once a second."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    replica: Name = Field(description="Id of this replica, unique in the cluster.")
    model: Name = Field(description="Id of the model that users ask for.")
    public_key: Annotated[str, Field(max_length=200)] = Field(
        default="", description="CURVE public key of the link's client (Z85 text); empty before it is known."
    )
    pid: Count = Field(description="Process id on its node.")
    node: Annotated[str, Field(max_length=200)] = Field(default="", description="Host name or address.")
    state: Annotated[str, Field(min_length=1, max_length=32)] = Field(
        default="ready", description="`starting`, `ready`, `stopping` or `failed`."
    )
    sent_at: NonNegativeFloat = Field(
        default=0.0,
        description="Sender's monotonic clock, in seconds. A report older than the newest one of the same "
        "process only arrived late and is ignored.",
    )
    snapshot: VerifierSnapshot = Field(default_factory=VerifierSnapshot, description="Counters and figures.")


def parse_drafter(report: dict[str, Any]) -> DrafterReport:
    """Check a drafter's announcement.

    Raises:
        BadReport: a field is missing, has the wrong type or is out of bounds.
    """
    return _parse(DrafterReport, "announcement", report)


def parse_verifier(report: dict[str, Any]) -> VerifierReport:
    """Check a verifier's report.

    Raises:
        BadReport: a field is missing, has the wrong type or is out of bounds.
    """
    return _parse(VerifierReport, "verifier's report", report)


def _parse(kind: type[Report], what: str, report: dict[str, Any]) -> Report:
    try:
        parsed = kind.model_validate(report)
        # Extra keys of a snapshot are kept, so they have to be bounded and of plain types too.
        size = len(parsed.model_dump_json())
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "report"
        raise BadReport(f"{what}: {where}: {first['msg']}") from None
    except (ValueError, RecursionError) as error:
        raise BadReport(f"{what}: cannot be written as JSON: {error}") from None
    if size > MAX_REPORT_BYTES:
        raise BadReport(f"{what}: {size} bytes, more than {MAX_REPORT_BYTES}; send figures, not data")
    return parsed
