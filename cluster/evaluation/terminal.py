"""An evaluation as tables for a terminal of 80 columns."""

from __future__ import annotations

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster.evaluation.result import TOLERANCE, Acceptance, Evaluation, Measurement, OwnMethod


def render(result: Evaluation) -> RenderableType:
    """Advice first, then what it rests on."""
    parts: list[RenderableType] = [Text(), Text(result.advice.summary, style="bold")]
    parts += [Text(f"- {one.words}") for one in result.advice.domains]
    parts += [Text(), _gains(result), _costs(result)]
    if result.measurements:
        parts += [_measured(result), Text(verdict(result))]
    if result.own_methods:
        parts += [Text(), _own_methods(result), Text(own_words(result))]
    parts += [
        Text(),
        Text("The configuration that follows (example prompts stay as they are):", style="bold"),
    ]
    parts += [Text(result.advice.changes)]
    parts += [Text(f"- {note}", style="dim") for note in origins(result) + result.notes]
    parts += [Text(f"- {result.machine}; {result.seconds:.0f} s", style="dim")]
    return Group(*parts)


def origins(result: Evaluation) -> list[str]:
    """What the texts are, for people."""
    borrowed = [domain.name for domain in result.domains if not domain.own]
    notes = []
    if borrowed:
        notes.append(
            f"Prompts of {', '.join(borrowed)}: the examples in the configuration. Your own say more: "
            f"--prompts {borrowed[0]}=FILE.jsonl"
        )
    return notes


def verdict(result: Evaluation) -> str:
    """How well predictions and measurements agree, in words."""
    errors = sorted(abs(one.error) for one in result.measurements)
    inside = sum(error <= TOLERANCE for error in errors)
    text = (
        f"{inside} of {len(errors)} predictions are within {TOLERANCE:.0%} of the measurement; "
        f"in the middle they are {errors[len(errors) // 2]:.1%} off, at worst {errors[-1]:.1%}."
    )
    lucky = [one for one in result.measurements if one.chance and abs(one.error) > TOLERANCE]
    if lucky:
        text += " Sampled texts differ from run to run; ± is what chance alone explains."
    return text


def _gains(result: Evaluation) -> Table:
    table = _table("Predicted speed-up at the best length k, by batch size")
    table.add_column("domain", no_wrap=True)
    table.add_column("candidate", no_wrap=True)
    table.add_column("accepted by\nposition, %", no_wrap=True)
    table.add_column("mean\nlength", justify="right")
    lowest = min(result.temperatures)
    for batch in result.batches:
        table.add_column(f"batch\n{batch}", justify="right", no_wrap=True)
    for temperature in result.temperatures[1:]:
        table.add_column(f"T {temperature:g}\nbatch {result.batches[0]}", justify="right", no_wrap=True)
    for domain in result.domains:
        shown = domain.name
        for found in [one for one in result.acceptance if one.domain == domain.name]:
            if found.temperature != lowest:
                continue
            cells = [_speed(result, found, lowest, batch) for batch in result.batches]
            cells += [_speed(result, found, warm, result.batches[0]) for warm in result.temperatures[1:]]
            table.add_row(shown, found.candidate, *_acceptance(found), *cells)
            shown = ""
        table.add_section()
    return table


def _speed(result: Evaluation, found: Acceptance, temperature: float, batch: int) -> str:
    best = result.best(found.domain, found.candidate, temperature, batch)
    return "-" if best is None else f"{best.predicted:.2f}x k{best.length}"


def _acceptance(found: Acceptance) -> tuple[str, str]:
    positions = " ".join(f"{100 * rate:2.0f}" for rate in found.by_position)
    return positions or "-", f"{found.lengths[-1].mean_acceptance_length:.2f}"


def _costs(result: Evaluation) -> Table:
    lengths = result.lengths
    table = _table("What a drafted token costs, and the acceptance from which length k pays")
    table.add_column("candidate", no_wrap=True)
    table.add_column("batch", justify="right", no_wrap=True)
    table.add_column("plain\nstep", justify="right", no_wrap=True)
    table.add_column("a drafted token", justify="right", no_wrap=True)
    for length in lengths:
        table.add_column(f"k = {length}", justify="right", no_wrap=True)
    for cost in result.costs:
        even = [cost.break_even[length] for length in lengths]
        table.add_row(
            cost.candidate,
            str(cost.batch),
            f"{cost.plain_step_ms:.0f} ms",
            f"{cost.token_ms:.1f} ms = {cost.relative_token_cost:.1%}",
            *("never" if rate is None else f"{rate:.0%}" for rate in even),
        )
    return table


def _measured(result: Evaluation) -> Table:
    table = _table("Predicted against measured, same prompts")
    for name in ("domain", "draft"):
        table.add_column(name, no_wrap=True)
    for name in ("T", "k", "batch", "plain\ntok/s", "drafts\ntok/s", "fore-\ntold", "meas-\nured", "error"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in result.measurements:
        table.add_row(*measurement_cells(one))
    return table


def measurement_cells(one: Measurement) -> list[str]:
    """One row of predicted against measured: what was run, both speeds, both speed-ups, the error."""
    return [
        one.domain,
        one.candidate,
        f"{one.temperature:g}",
        str(one.length),
        str(one.batch),
        f"{one.plain_rate:.1f}",
        f"{one.drafted_rate:.1f}",
        f"{one.predicted:.2f}x",
        f"{one.measured:.2f}x",
        error_text(one),
    ]


def _own_methods(result: Evaluation) -> Table:
    table = _table("vLLM's own ways to propose, each in an engine of its own")
    for name in ("domain", "method"):
        table.add_column(name, no_wrap=True)
    for name in ("k", "acc-\nepted", "mean\nlength", "batch", "plain\ntok/s", "own\ntok/s", "speed-\nup"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in result.own_methods:
        table.add_row(*own_cells(one))
    return table


def own_cells(one: OwnMethod) -> list[str]:
    """One row of vLLM's own ways to propose."""
    return [
        one.domain,
        one.name,
        str(one.length),
        f"{one.acceptance_rate:.0%}",
        f"{one.mean_acceptance_length:.2f}",
        str(one.batch),
        f"{one.plain_rate:.1f}",
        f"{one.rate:.1f}",
        f"{one.speedup:.2f}x",
    ]


def own_words(result: Evaluation) -> str:
    """Whether texts stayed the same, and how sure the speeds are."""
    batch = result.own_methods[0].batch
    once = [one for one in result.own_methods if one.batch == batch]
    same, texts = sum(one.same for one in once), sum(one.texts for one in once)
    return (
        f"{same} of {texts} greedy texts are those of plain decoding. Plain ran before, on the fleet's "
        "engine: these speed-ups are sure to a tenth only. They are not part of the advice."
    )


def error_text(one: Measurement) -> str:
    """The error, with what chance explains of it."""
    chance = f" ±{one.chance:.0%}" if one.chance else ""
    return f"{one.error:+.1%}{chance}"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
