"""What an evaluation found, as one object: the JSON file is its dump, tables and charts are drawn from it."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

#: From this gain on a draft is called worth it; less than this is within what runs differ by.
WORTH = 1.05
#: What a prediction may differ from the measurement by before the report says so.
TOLERANCE = 0.15


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DomainInfo(_Part):
    """What was asked in one domain."""

    name: str = Field(description="The domain.")
    draft: str = Field(description="The draft that the configuration uses for it.")
    prompts: int = Field(description="Prompts answered greedily.")
    samples: int = Field(description="Prompts answered at each temperature above 0.")
    tokens: int = Field(description="Tokens of the greedy answers.")
    origin: str = Field(description="Where the prompts come from.")
    own: bool = Field(description="Whether they are the user's own prompts.")


class CandidateInfo(_Part):
    """One source of proposals."""

    name: str = Field(description="Its name.")
    kind: Literal["draft", "layers", "lookup"] = Field(
        description="A draft model, the verifier's first layers, or text that is looked up."
    )
    source: str = Field(description="Where it comes from.")
    model: str | None = Field(description="What a configuration would name as its model; null without one.")
    configured: bool = Field(description="Whether the configuration has it already.")
    served: bool = Field(description="Whether the fleet can serve it; looked-up text is only scored so far.")


class LengthFigures(_Part):
    """How proposals of one length fare in one domain."""

    length: int = Field(description="Tokens asked for in every step, k.")
    acceptance_rate: float = Field(description="Accepted of proposed tokens.")
    mean_acceptance_length: float = Field(
        description="Tokens per step that carried a proposal, the verifier's own counted."
    )
    spread: float = Field(description="Standard error of the mean acceptance length.")
    covered: float = Field(description="Share of steps that carried a proposal.")


class Acceptance(_Part):
    """How often one candidate is right in one domain."""

    domain: str = Field(description="The domain.")
    candidate: str = Field(description="The candidate.")
    temperature: float = Field(description="Sampling temperature of the texts.")
    by_position: list[float] = Field(
        description="Per position of the longest proposal, the share accepted of those that were judged."
    )
    lengths: list[LengthFigures] = Field(description="Figures by proposal length.")


class Cost(_Part):
    """What a candidate costs at one batch size."""

    candidate: str = Field(description="The candidate.")
    batch: int = Field(description="Requests decoded together.")
    plain_step_ms: float = Field(description="A verifier step without proposals, milliseconds.")
    token_ms: float = Field(description="One more drafted token for every request, milliseconds.")
    relative_token_cost: float = Field(description="A drafted token in verifier steps.")
    wait_ms: dict[int, float] = Field(description="By length, what a step waits for proposals, milliseconds.")
    step_ratio: dict[int, float] = Field(
        description="By length, a step with proposals in plain steps: what it has to bring in tokens."
    )
    break_even: dict[int, float | None] = Field(
        description="By length, the acceptance rate per judged token at which drafting begins to pay; "
        "null where even a draft that is always right would not pay."
    )


class Speed(_Part):
    """Speed of one candidate in one domain at one length and batch size, relative to plain decoding."""

    domain: str = Field(description="The domain.")
    candidate: str = Field(description="The candidate.")
    temperature: float = Field(description="Sampling temperature.")
    length: int = Field(description="Tokens asked for in every step, k.")
    batch: int = Field(description="Requests decoded together.")
    predicted: float = Field(description="Predicted from acceptance and costs, on all texts of the domain.")


class Measurement(_Part):
    """A prediction against the clock, on the very prompts that were run."""

    domain: str = Field(description="The domain.")
    candidate: str = Field(description="The candidate.")
    temperature: float = Field(description="Sampling temperature.")
    length: int = Field(description="Tokens asked for in every step, k.")
    batch: int = Field(description="Requests decoded together.")
    predicted: float = Field(description="Predicted speed-up for these prompts.")
    measured: float = Field(description="Measured speed-up.")
    error: float = Field(description="Predicted / measured - 1.")
    chance: float = Field(
        description="Standard error of the ratio that is due to the chance of sampling; 0 at temperature 0."
    )
    plain_rate: float = Field(description="Tokens per second without drafts.")
    drafted_rate: float = Field(description="Tokens per second with them.")
    predicted_length: float = Field(description="Foretold tokens per row and step.")
    measured_length: float = Field(description="Tokens per row and step that were seen.")
    predicted_step_ratio: float = Field(description="Foretold time of a step, in plain steps.")
    measured_step_ratio: float = Field(
        description="Time of a step that was seen, in the plain steps beside it."
    )
    step_ms: float = Field(description="Milliseconds per step that were seen.")


class OwnMethod(_Part):
    """One of vLLM's own ways to propose, measured in an engine of its own, greedily decoded."""

    domain: str = Field(description="The domain.")
    name: str = Field(description="Its name.")
    method: str = Field(description="vLLM's name of the way to propose.")
    model: str | None = Field(description="The head or draft; null without one.")
    length: int = Field(description="Tokens proposed in every step, k.")
    batch: int = Field(description="Requests decoded together.")
    acceptance_rate: float = Field(description="Accepted of proposed tokens, as vLLM counts them.")
    mean_acceptance_length: float = Field(
        description="Tokens per step that carried a proposal, the verifier's own counted."
    )
    same: int = Field(description="Texts that are those of plain decoding, token for token.")
    texts: int = Field(description="All texts.")
    plain_rate: float = Field(description="Tokens per second of plain decoding, measured before.")
    rate: float = Field(description="Tokens per second with it.")
    speedup: float = Field(description="The one over the other; not interleaved, so sure to a tenth only.")


class BatchAdvice(_Part):
    """What is best for a domain at one batch size."""

    batch: int = Field(description="Requests decoded together.")
    length: int = Field(description="Tokens to propose; 0 to decode plainly.")
    speedup: float = Field(
        description="Predicted speed-up there; of the best length even where it is not used."
    )


class DomainAdvice(_Part):
    """What to do in one domain."""

    domain: str = Field(description="The domain.")
    candidate: str | None = Field(description="The draft to use; null where none is worth it.")
    words: str = Field(description="The same as a sentence or two.")
    batches: list[BatchAdvice] = Field(description="By batch size.")


class Advice(_Part):
    """What follows from all of it."""

    summary: str = Field(description="The whole in one sentence.")
    domains: list[DomainAdvice] = Field(description="Domain by domain.")
    generalist: str = Field(description="The draft that does best over all domains.")
    max_draft_tokens: int = Field(description="The longest proposal that is best anywhere.")
    changes: str = Field(description="The part of the configuration that follows, as YAML.")
    configuration: str = Field(description="The whole configuration with that part, as YAML.")


class Evaluation(_Part):
    """Everything that an evaluation found."""

    format_version: Literal[1] = 1
    specfleet: str = Field(description="Version of specfleet.")
    configuration: str = Field(description="The configuration file.")
    verifier: str = Field(description="The verifier's name.")
    quick: bool = Field(description="Whether it was a quick one: fewer prompts, no compiled code.")
    seconds: float = Field(description="How long it took.")
    machine: str = Field(description="What it ran on.")
    temperatures: list[float] = Field(description="Sampling temperatures.")
    batches: list[int] = Field(description="Batch sizes.")
    lengths: list[int] = Field(description="Proposal lengths.")
    domains: list[DomainInfo]
    candidates: list[CandidateInfo]
    acceptance: list[Acceptance]
    costs: list[Cost]
    speeds: list[Speed]
    measurements: list[Measurement]
    own_methods: list[OwnMethod] = Field(
        default_factory=list, description="vLLM's own ways to propose that were asked for."
    )
    advice: Advice
    notes: list[str] = Field(description="What a reader has to know about these figures.")

    def best(self, domain: str, candidate: str, temperature: float, batch: int) -> Speed | None:
        """The length at which a candidate is predicted to be fastest."""
        wanted = (domain, candidate, temperature, batch)
        fitting = [
            one for one in self.speeds if (one.domain, one.candidate, one.temperature, one.batch) == wanted
        ]
        return max(fitting, key=lambda one: one.predicted, default=None)
