"""A fleet as a plan sees it, and what it does under a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from cluster.planning.assumptions import Assumptions
from cluster.planning.memory import MemoryFit, verifier_fit
from cluster.planning.roofline import Engine
from cluster.planning.speculation import DraftOn, expected_tokens, wait_seconds


@dataclass(frozen=True, slots=True)
class Fleet:
    """Verifiers and drafts on processors.

    Attributes:
        verifier: the verifier's model on its GPUs.
        replicas: verifiers side by side.
        drafts: the drafts; none for plain vLLM.
        most_rows: vLLM's max_num_seqs.
        gpus: GPUs in all, fractions counted as what they take from the rest.
        price_per_hour: of everything.
        taken_gib: memory of each verifier GPU that drafters beside it take.
        kv_gib: KV memory of each verifier GPU, when the configuration fixes it.
    """

    verifier: Engine
    replicas: int
    drafts: tuple[DraftOn, ...]
    most_rows: int
    gpus: float
    price_per_hour: float
    taken_gib: float = 0.0
    kv_gib: float | None = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a fleet does under a load.

    Attributes:
        running: requests that all verifiers work on at a time.
        waiting: requests in flight that find no room.
        lengths: draft -> tokens proposed, the best for this batch; empty without drafts.
        step_tokens: tokens that a request gets per step, on average.
        step_s: seconds of a verifier's step, the wait for drafts included.
        wait_s: seconds of it that the verifier waits for drafts.
        prefill_s: seconds of a verifier's time that a prompt takes.
        request_rate: tokens per second that one running request gets, its prompt's time included.
        rate: tokens per second of the fleet.
        price_per_million: price of a million answer tokens.
    """

    running: float
    waiting: float
    lengths: Mapping[str, int]
    step_tokens: float
    step_s: float
    wait_s: float
    prefill_s: float
    request_rate: float
    rate: float
    price_per_million: float

    @property
    def speculates(self) -> bool:
        """Whether any proposal pays."""
        return any(self.lengths.values())


def fit_of(fleet: Fleet, assumptions: Assumptions) -> MemoryFit:
    """What one of the fleet's verifiers holds, for requests of the load's length."""
    load = assumptions.load
    most = assumptions.speculation.max_draft_tokens if fleet.drafts else 0
    return verifier_fit(
        fleet.verifier,
        assumptions.memory,
        load.prompt_tokens + load.answer_tokens,
        logits=fleet.most_rows * (1 + most),
        taken_gib=fleet.taken_gib,
        kv_gib=fleet.kv_gib,
    )


def evaluate(fleet: Fleet, assumptions: Assumptions, concurrency: float | None = None) -> Outcome | None:
    """What the fleet does with `concurrency` requests in flight (the load's, unless given).

    A verifier's time goes to steps and to prompts: with R requests running, each of O answer tokens that come
    E per step of T seconds, and P seconds for each prompt, it writes ``R O / (O T / E + R P)`` tokens a
    second.

    Returns:
        None when not even one request of the load's length fits.
    """
    load = assumptions.load
    wanted = float(load.concurrency if concurrency is None else concurrency)
    room = min(fit_of(fleet, assumptions).requests, fleet.most_rows)
    if room < 1:
        return None
    active = min(float(fleet.replicas), wanted)  # fewer requests than verifiers: some stand idle
    rows = min(wanted / active, float(room))
    return _best(fleet, assumptions, rows, active, wanted)


def _best(fleet: Fleet, assumptions: Assumptions, rows: float, active: float, wanted: float) -> Outcome:
    """The outcome at the proposal lengths that give the most tokens per second.

    Costs that all drafts share (the wait, the step) make single steps from nothing look bad, so the search
    starts from the best common length, then improves one draft at a time.
    """
    most = assumptions.speculation.max_draft_tokens
    names = [draft.name for draft in fleet.drafts]

    def at(lengths: Mapping[str, int]) -> Outcome:
        return _outcome(fleet, assumptions, rows, active, wanted, lengths)

    best = at(dict.fromkeys(names, 0))
    if not names:
        return best
    for length in range(1, most + 1):
        best = max(best, at(dict.fromkeys(names, length)), key=lambda outcome: outcome.rate)
    for _ in range(3 if len(names) > 1 else 0):
        before = best.rate
        for name in names:
            for length in range(most + 1):
                best = max(best, at({**best.lengths, name: length}), key=lambda outcome: outcome.rate)
        if best.rate <= before:
            break
    return best


def _outcome(
    fleet: Fleet,
    assumptions: Assumptions,
    rows: float,
    active: float,
    wanted: float,
    lengths: Mapping[str, int],
) -> Outcome:
    load, hardware, speculation = assumptions.load, assumptions.hardware, assumptions.speculation
    context = load.prompt_tokens + load.answer_tokens / 2
    step_tokens, verified = 1.0, 1.0
    if fleet.drafts:
        step_tokens = sum(d.share * expected_tokens(d.acceptance, lengths[d.name]) for d in fleet.drafts)
        verified = sum(d.share * (1 + lengths[d.name]) for d in fleet.drafts)
    step = fleet.verifier.decode_seconds(rows, verified, context, hardware) + hardware.step_ms * 1e-3
    if fleet.drafts:
        step += speculation.verifier_ms * 1e-3
    wait = 0.0
    if any(lengths.values()):
        wait = wait_seconds(fleet.drafts, rows, lengths, context, active, step, hardware, speculation)
    cycle = step + wait
    prefill = fleet.verifier.prefill_seconds(
        load.prompt_tokens, load.prompt_tokens * load.cached_share, hardware
    )
    answer = load.answer_tokens
    request_rate = answer / (answer * cycle / step_tokens + rows * prefill)
    rate = active * rows * request_rate
    return Outcome(
        running=active * rows,
        waiting=max(0.0, wanted - active * rows),
        lengths=dict(lengths),
        step_tokens=step_tokens,
        step_s=cycle,
        wait_s=wait,
        prefill_s=prefill,
        request_rate=request_rate,
        rate=rate,
        price_per_million=fleet.price_per_hour / (rate * 3600) * 1e6,
    )


def without_drafts(fleet: Fleet) -> Fleet:
    """The same verifiers as plain vLLM, on their own GPUs only."""
    gpus = float(fleet.replicas * fleet.verifier.parallel)
    price = gpus * fleet.verifier.gpu.price_per_hour
    return replace(fleet, drafts=(), gpus=gpus, price_per_hour=price, taken_gib=0.0)


def with_acceptance(fleet: Fleet, acceptance: float) -> Fleet:
    """The same fleet with every draft's proposals accepted at this rate."""
    return replace(fleet, drafts=tuple(replace(draft, acceptance=acceptance) for draft in fleet.drafts))
