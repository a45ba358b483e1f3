"""A plan as tables for people."""

from __future__ import annotations

from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cluster.planning.assumptions import Assumptions
from cluster.planning.gpus import Gpu
from cluster.planning.memory import GIB
from cluster.planning.plan import Plan
from cluster.planning.spared import Need, Spared


def render(plan: Plan) -> RenderableType:
    """Lays out a plan: models, memory, quantisation, GPU types, ways to spend GPUs, advice, assumptions."""
    parts: list[RenderableType] = [_models(plan), _memory(plan), _sizes(plan, "precision")]
    if plan.draft_precisions:
        parts.append(_drafts(plan))
    if len(plan.drafts_alone) > 1:
        parts.append(_alone(plan))
    if plan.types:
        parts.append(_sizes(plan, "GPU"))
    parts += [_placement(plan), _options(plan), _loads(plan)]
    if plan.spared is not None:
        parts += [Text(_spared(plan.spared, plan.scenario.assumptions)), Text("")]
    parts += [Text(f"Note: {note}.", "yellow") for note in plan.notes]
    if plan.notes:
        parts.append(Text(""))
    parts += [_assumptions(plan), Text("")]
    parts += [Text(sentence, "bold") for sentence in plan.recommendation]
    return Group(*parts)


def _models(plan: Plan) -> Table:
    table = _table("Models", "", "model", right=("parameters", "active", "in", "weights", "KV/token"))
    scenario = plan.scenario
    for name, found in scenario.found.items():
        draft = next((each for each in scenario.drafts if each.name == name), None)
        precision = draft.precision if draft else scenario.base.verifier.precision
        number = draft.kv_number_bytes if draft else scenario.base.verifier.kv_number_bytes
        shape = found.shape
        table.add_row(
            name,
            shape.name,
            _count(shape.parameters),
            _count(shape.active) if shape.experts else "all",
            precision.name,
            _gib(shape.weight_bytes(precision) / GIB),
            f"{shape.kv_numbers * number / 1024:.1f} KiB",
        )
    origins = dict.fromkeys(found.origin for found in scenario.found.values())
    table.caption = "Configurations from: " + ", ".join(origins) + "."
    return table


def _memory(plan: Plan) -> Table:
    base, fit = plan.scenario.base, plan.fit
    load = plan.scenario.assumptions.load
    size = base.verifier.parallel
    whose = f"each of the verifier's {size} GPUs" if size > 1 else "the verifier"
    title = f"Memory of {whose} ({base.verifier.gpu.name})"
    table = _table(
        title, right=("vLLM may take", "weights", "activations", "left for KV", "tokens", "requests")
    )
    table.add_row(
        _gib(fit.usable), _gib(fit.weights), _gib(fit.activations), _gib(fit.kv), f"{fit.kv_tokens:,}",
        f"{fit.requests:,}",
    )  # fmt: skip
    table.caption = (
        f"Requests of {load.prompt_tokens} + {load.answer_tokens} tokens that fit whole; "
        f"at most {base.most_rows} run (max_num_seqs)."
    )
    return table


def _sizes(plan: Plan, what: str) -> Table:
    rows = plan.precisions if what == "precision" else plan.types
    drafted = bool(plan.scenario.drafts)
    title = "What quantising the verifier buys" if what == "precision" else "One verifier on other GPUs"
    unit = _unit(plan)
    right = ["weights", f"{unit}s", "requests", "tokens/s", "per million"]
    table = _table(title, what, right=tuple(right + (["with drafts", "per million"] if drafted else [])))
    for row in rows:
        if row.parallel is None:
            table.add_row(
                row.name, _gib(row.weights_gib), "-", "does not", "fit", *[""] * (3 if drafted else 1)
            )
            continue
        cells = [_rate(row.plain), _money(row.plain_price)]
        cells += [_rate(row.drafted), _money(row.drafted_price)] if drafted else []
        table.add_row(row.name, _gib(row.weights_gib), str(row.parallel), f"{row.requests:,}", *cells)
    table.caption = (
        "With drafts: on one more GPU" + (" of that type." if what == "GPU" else ".") if drafted else ""
    )
    return table


def _drafts(plan: Plan) -> Table:
    k = plan.scenario.assumptions.speculation.max_draft_tokens
    right = ("weights", "in all", f"{k} tokens take", "fleet's tokens/s")
    table = _table("What quantising the drafts buys", "draft", "in", right=right)
    for row in plan.draft_precisions:
        table.add_row(
            row.draft, row.precision, _gib(row.weights_gib), _gib(row.gib), f"{row.proposal_ms:.1f} ms",
            _rate(row.rate),
        )  # fmt: skip
    if not plan.scenario.draft_gpu.cpu:
        table.caption = "On GPUs drafters run in their dtype so far."
    return table


def _alone(plan: Plan) -> Table:
    right = ("accepted", "k", "tokens/s", "per million", "pays from")
    table = _table(f"Each draft by itself, on one more {plan.scenario.draft_gpu.name}", "draft", right=right)
    for row in plan.drafts_alone:
        least = "never" if row.pays_from is None else f"{row.pays_from:.2f}"
        k = "-" if row.length is None else str(row.length)
        table.add_row(row.draft, f"{row.acceptance:.2f}", k, _rate(row.rate), _money(row.price), least)
    table.caption = "Pays from: the acceptance at which it adds tokens/s at all."
    return table


def _placement(plan: Plan) -> RenderableType:
    scenario, placement = plan.scenario, plan.placement
    parts: list[RenderableType] = []
    if any(slot.tenants for slot in placement.slots):
        table = _table("Placement", "GPU", "who", right=("filled", "of"))
        for slot in placement.slots:
            who = ", ".join(
                owner if share > 0.999 else f"{owner} ({share:g})" for owner, share, _ in slot.tenants
            )
            table.add_row(
                f"node {slot.node} GPU {slot.index}", who or Text("free", "dim"), _gib(slot.filled_gib),
                _gib(slot.gpu.memory_gib),
            )  # fmt: skip
        parts.append(table)
    elif scenario.nodes and not placement.problems:
        parts += [Text("Placement: everything fits on the nodes' CPUs."), Text("")]
    for problem in placement.problems:
        parts += [Text(f"Does not fit on the nodes: {problem}.", "red"), Text("")]
    return Group(*parts)


def _options(plan: Plan) -> Table:
    load = plan.scenario.assumptions.load
    right = (f"{_unit(plan)}s", "run", "k", "step", "wait", "tokens/s", "each", "per million")
    table = _table(
        f"Ways to spend {_unit(plan)}s, {load.concurrency} requests in flight",
        "",
        right=right,
    )
    for option in plan.options:
        outcome = option.outcome
        if outcome is None or option.fleet is None:
            table.add_row(option.name, Text("no", "dim"), *[""] * 7)
            continue
        k = "/".join(str(length) for length in outcome.lengths.values()) if outcome.lengths else "-"
        table.add_row(
            option.name,
            f"{option.fleet.gpus:g}",
            f"{outcome.running:.0f}",
            k,
            f"{1000 * outcome.step_s:.1f}",
            f"{1000 * outcome.wait_s:.1f}" if outcome.speculates else "-",
            _rate(outcome.rate),
            f"{outcome.request_rate:.1f}",
            _money(outcome.price_per_million),
        )
    impossible = [f"{option.name}: {option.why_not}" for option in plan.options if option.outcome is None]
    names = ", ".join(draft.name for draft in plan.scenario.drafts)
    lines = []
    if names:
        lines.append(f"k: tokens proposed ({names}). Step in ms, with the wait for drafts in it.")
    if any(option.key == "beside" for option in plan.options):
        lines.append("On the verifier's GPU: no configuration can say that yet, a verifier takes whole GPUs.")
    if any(option.key == "fraction" for option in plan.options):
        lines.append("On a fraction of a GPU: its rest serves other fleets that are as busy.")
    table.caption = "\n".join(lines + [f"Not possible: {each}." for each in impossible])
    return table


def _loads(plan: Plan) -> Table:
    possible = [option for option in plan.options if option.outcome is not None]
    letters = {option.name: chr(ord("A") + number) for number, option in enumerate(possible)}
    table = _table("Tokens/s by load", right=("requests", *letters.values()))
    table.add_column(f"next {_unit(plan)} to")
    for row in plan.loads:
        cells = [_rate(row.rates[name]) for name in letters]
        style = "bold" if row.concurrency == plan.scenario.assumptions.load.concurrency else ""
        table.add_row(str(row.concurrency), *cells, letters.get(row.winner, "-"), style=style)
    table.caption = "; ".join(f"{letter} {name}" for name, letter in letters.items())
    return table


def _spared(found: Spared, assumptions: Assumptions) -> str:
    start = f"So that each of {assumptions.load.concurrency} requests gets {found.speed:g} tokens/s: "
    if found.plain is None and found.drafted is None:
        return start + "no number of these GPUs does it, with or without drafts."
    if found.drafted is None:
        return f"{start}{_need(found.plain)} without drafts; with them it is not reached."
    if found.plain is None:
        return f"{start}not reached without drafts; {_need(found.drafted)} with them."
    saved = found.plain.price - found.drafted.price
    fewer = found.plain.gpus - found.drafted.gpus
    verdict = f"drafts cost {-saved:.2f} more" if saved < 0 else f"drafts spare {saved:.2f} an hour"
    if abs(saved) < 0.005:
        verdict = "no difference"
    if saved > 0 and fewer > 0:
        verdict = f"drafts spare {fewer} GPU{'s' if fewer > 1 else ''}"
    return f"{start}{_need(found.plain)} without drafts, {_need(found.drafted)} with them: {verdict}."


def _need(need: Need | None) -> str:
    if need is None:
        return "nothing"
    own = f" and {need.draft_gpus} for drafts" if need.draft_gpus else ""
    gpus = f"{need.gpus} GPU{'s' if need.gpus > 1 else ''}"
    return f"{gpus} ({need.verifiers} x {need.parallel}{own}, {need.price:.2f} an hour)"


def _assumptions(plan: Plan) -> Text:
    """What was taken for granted, in a few lines; the file has every figure."""
    given = plan.scenario.assumptions
    load, hardware, memory, speculation = given.load, given.hardware, given.memory, given.speculation
    base = plan.scenario.base
    gpus = {base.verifier.gpu.name: base.verifier.gpu}
    gpus[plan.scenario.draft_gpu.name] = plan.scenario.draft_gpu
    prices = ", ".join(f"{name} {gpu.price_per_hour:.2f} an hour" for name, gpu in gpus.items())
    acceptance = ", ".join(
        f"{draft.name} {draft.acceptance:.2f} of {draft.share:.0%} of the requests"
        for draft in plan.scenario.drafts
    )
    lines = [
        f"Load: {load.concurrency} requests in flight, {load.prompt_tokens} prompt and {load.answer_tokens} "
        f"answer tokens, {load.cached_share:.0%} of prompts cached.",
        *([f"Acceptance: {acceptance}. Measure it: everything depends on it."] if acceptance else []),
        f"Prices: {prices}, in USD; put in yours.",
        f"Reached: {hardware.memory_efficiency:.0%} of memory bandwidth, {hardware.compute_efficiency:.0%} "
        f"of peak operations; {hardware.layer_us:g} us a layer (drafts {speculation.draft_layer_us:g}), "
        f"{hardware.all_reduce_us:g} us an all-reduce, {hardware.step_ms:g} ms a step.",
        f"With drafts: {speculation.verifier_ms:g} ms more a step, {speculation.link_ms:g} ms link, "
        f"{speculation.turn_ms:g} ms a drafter's turn, k up to {speculation.max_draft_tokens}.",
        f"Memory: {memory.gpu_memory_utilization:.0%} of a GPU, {memory.batched_tokens} tokens batched, KV "
        f"in {base.verifier.kv_number_bytes:g} bytes a number.",
        "Estimates, within about a quarter of published figures where there are any: docs/planning.md. "
        "Change anything: specfleet plan --print-assumptions > mine.yaml, then --assumptions mine.yaml.",
    ]
    text = Text("Assumptions\n", "bold")
    return text.append("\n".join(lines), "not bold")


def _unit(plan: Plan) -> str:
    return "core" if plan.scenario.base.verifier.gpu.cpu else "GPU"


def _table(title: str, *left: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        caption_justify="left",
    )
    for name in left:
        table.add_column(name)
    for name in right:
        table.add_column(name, justify="right")
    return table


def _gib(gib: float) -> str:
    return f"{gib:.1f} GiB" if gib < 999.5 else f"{gib / 1024:.2f} TiB"


def _count(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


def _rate(rate: float | None) -> str:
    if rate is None:
        return "-"
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def _money(price: float | None) -> str:
    return "-" if price is None else f"{price:.2f}"


def gpu_table(types: Mapping[str, Gpu]) -> Table:
    """All types of GPU with their figures and sources."""
    table = _table("Types of GPU", "type", right=("GiB", "GB/s", "bf16", "fp8", "int8", "link", "USD/h"))
    table.add_column("source", overflow="fold")
    for gpu in types.values():
        numbers = (gpu.memory_gib, gpu.bandwidth_gbs, gpu.bf16_tflops, gpu.fp8_tflops, gpu.int8_tflops)
        cells = ["-" if number is None else f"{number:g}" for number in (*numbers, gpu.link_gbs)]
        table.add_row(gpu.name, *cells, f"{gpu.price_per_hour:.2f}", gpu.source)
    table.caption = "bf16, fp8, int8: dense TFLOPS. Prices are assumptions: --price TYPE=USD."
    return table
