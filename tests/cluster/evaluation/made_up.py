"""A result with figures made up for tests of what is said about them."""

from __future__ import annotations

from collections.abc import Mapping

from cluster.evaluation.advice import choose
from cluster.evaluation.result import (
    Acceptance,
    Advice,
    CandidateInfo,
    Cost,
    DomainInfo,
    Evaluation,
    LengthFigures,
    Measurement,
    Speed,
)

#: (domain, candidate, batch) -> (best length, predicted speed-up) at temperature 0.
Gains = Mapping[tuple[str, str, int], tuple[int, float]]


def candidate(name: str, *, served: bool = True, configured: bool = True) -> CandidateInfo:
    return CandidateInfo(
        name=name,
        kind="draft" if served else "lookup",
        source=name,
        model=f"./models/{name}" if served else None,
        configured=configured,
        served=served,
    )


def speeds(gains: Gains, temperature: float = 0.0) -> list[Speed]:
    """The best length at its speed, and another that is worse."""
    found = []
    for (domain, name, batch), (length, gain) in gains.items():
        for k, value in ((length, gain), (length + 1, gain - 0.01)):
            found.append(
                Speed(
                    domain=domain,
                    candidate=name,
                    temperature=temperature,
                    length=k,
                    batch=batch,
                    predicted=value,
                )
            )
    return found


def evaluation(gains: Gains, *, measured: float | None = 1.1, odd: str = "") -> Evaluation:
    """A whole result; `odd` is put into every text that comes from outside."""
    domains = list(dict.fromkeys(domain for domain, _, _ in gains))
    names = list(dict.fromkeys(name for _, name, _ in gains))
    candidates = [candidate(name) for name in names]
    batches = sorted({batch for _, _, batch in gains})
    found = speeds(gains)
    choice = choose(found, candidates, dict.fromkeys(domains, names[0]), names[0])
    measurements = []
    if measured is not None:
        measurements.append(
            Measurement(
                domain=domains[0],
                candidate=names[0],
                temperature=0.0,
                length=2,
                batch=1,
                predicted=1.12,
                measured=measured,
                error=round(1.12 / measured - 1, 4),
                chance=0.0,
                plain_rate=16.0,
                drafted_rate=16.0 * measured,
                predicted_length=1.4,
                measured_length=1.4,
                predicted_step_ratio=1.25,
                measured_step_ratio=1.27,
                step_ms=71.0,
            )
        )
    return Evaluation(
        specfleet="0.0",
        configuration=f"fleet{odd}.yaml",
        verifier=f"tiny{odd}",
        quick=True,
        seconds=123.4,
        machine="2 cores",
        temperatures=[0.0],
        batches=batches,
        lengths=[1, 2],
        domains=[
            DomainInfo(name=one, draft=names[0], prompts=4, samples=0, tokens=99, origin=f"x{odd}", own=False)
            for one in domains
        ],
        candidates=candidates,
        acceptance=[
            Acceptance(
                domain=domain,
                candidate=name,
                temperature=0.0,
                by_position=[0.4, 0.3],
                lengths=[
                    LengthFigures(
                        length=k, acceptance_rate=0.4, mean_acceptance_length=1.4, spread=0.1, covered=1.0
                    )
                    for k in (1, 2)
                ],
            )
            for domain in domains
            for name in names
        ],
        costs=[
            Cost(
                candidate=name,
                batch=batch,
                plain_step_ms=60.0,
                token_ms=2.0,
                relative_token_cost=0.033,
                wait_ms={1: 2.5, 2: 4.5},
                step_ratio={1: 1.1, 2: 1.2},
                break_even={1: 0.1, 2: None},
            )
            for name in names
            for batch in batches
        ],
        speeds=found,
        measurements=measurements,
        advice=Advice(
            summary=choice.summary,
            domains=choice.domains,
            generalist=choice.generalist,
            max_draft_tokens=choice.max_draft_tokens,
            changes="generalist: code\n",
            configuration="generalist: code\n",
        ),
        notes=[f"note{odd}"],
    )
