"""An evaluation as one HTML page: what it means, then charts, then tables. No scripts, no network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from cluster.evaluation.chart import COLOURS, Series, bars, dots, lines
from cluster.evaluation.result import TOLERANCE, WORTH, Evaluation
from cluster.evaluation.terminal import measurement_cells, origins, own_cells, own_words, verdict

#: Told apart also by those who see few colours (after Okabe and Ito): on light, on dark.
_PALETTE = (
    ("#0072b2", "#56b4e9"),
    ("#d55e00", "#ff8a3d"),
    ("#009e73", "#35d0a5"),
    ("#cc79a7", "#e9a6cb"),
    ("#8a6d00", "#f0d442"),
    ("#5b4fb3", "#a79bff"),
    ("#7a7a7a", "#b5b5b5"),
    ("#a3262a", "#ff7b7f"),
)
assert len(_PALETTE) == COLOURS

_STYLE = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#57606a;--edge:#d0d7de;--panel:#f6f8fa}
@media (prefers-color-scheme:dark){
:root{--bg:#0f1318;--fg:#e6e9ec;--soft:#9aa4ae;--edge:#39424c;--panel:#181e25}}
body{background:var(--bg);color:var(--fg);font:16px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;
padding:1rem}
h1{font-size:1.6rem;margin-bottom:.2rem}h2{margin-top:2.2rem;font-size:1.25rem}
.lead{font-size:1.15rem;font-weight:600}.soft{color:var(--soft)}
.row{display:flex;flex-wrap:wrap;gap:1rem}figure{margin:0;overflow-x:auto}
figcaption{font-weight:600;font-size:.95rem}
svg{max-width:100%;height:auto}svg text{fill:var(--fg);font:11px system-ui,sans-serif}
svg text.v{font-size:8.5px}
.grid{stroke:var(--edge);stroke-width:.5}.ref{stroke:var(--fg);stroke-width:1.5;stroke-dasharray:4 3}
.band{fill:var(--edge);opacity:.5}.l{fill:none;stroke-width:2}
.key{display:inline-block;width:.8em;height:.8em;margin:0 .35em 0 .9em}
.scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.9rem;margin:.5rem 0}
th,td{border-bottom:1px solid var(--edge);padding:.25rem .6rem;text-align:right;white-space:nowrap}
th:first-child,td:first-child,td.t,th.t{text-align:left}thead th{color:var(--soft);font-weight:600}
pre{background:var(--panel);padding:.8rem;overflow-x:auto;border-radius:6px}
"""


def page(result: Evaluation) -> str:
    """The whole page."""
    title = f"Which drafts are worth it for {result.verifier}?"
    colours = {candidate.name: number for number, candidate in enumerate(result.candidates)}
    body = [
        f"<h1>{escape(title)}</h1>",
        f'<p class="soft">{escape(result.configuration)}, {escape(result.machine)}, '
        f"{result.seconds / 60:.1f} minutes{', quick' if result.quick else ''}</p>",
        _meaning(result),
        _charts(result, colours),
        _tables(result),
        _words(),
        _notes(result),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{_colours()}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _meaning(result: Evaluation) -> str:
    words = "".join(f"<li>{escape(one.words)}</li>" for one in result.advice.domains)
    return (
        f'<h2>What it means</h2><p class="lead">{escape(result.advice.summary)}</p><ul>{words}</ul>'
        "<p>A draft is a small model that proposes the next words; the verifier, the model your users asked "
        "for, checks them all at once and keeps those it would have written itself. The answers stay the "
        "verifier's own, word for word: drafts only change how soon they come. "
        f"2.00x means twice as many words per second. Less than {WORTH:.2f}x is called not worth it.</p>"
        "<p>The configuration that follows (example prompts stay as they are):</p>"
        f"<pre>{escape(result.advice.changes)}</pre>"
    )


def _charts(result: Evaluation, colours: dict[str, int]) -> str:
    lowest = min(result.temperatures)
    domains = [domain.name for domain in result.domains]
    figures = []
    for batch in result.batches:
        series = []
        for candidate in result.candidates:
            best = [result.best(domain, candidate.name, lowest, batch) for domain in domains]
            series.append(
                Series(
                    candidate.name,
                    [None if one is None else one.predicted for one in best],
                    colours[candidate.name],
                )
            )
        many = f"{batch} request{'s' if batch > 1 else ''} at a time"
        title = f"Predicted speed-up by domain, {many}"
        figures.append(_figure(title, bars(title, domains, series, reference=1.0, unit="x")))
    parts = [
        "<h2>Charts</h2>",
        _legend(result, colours),
        "<p>Each bar is a candidate at its best proposal length; the dashed line is the verifier alone.</p>",
        *figures,
        "<p>How often the verifier accepts the first, second, ... proposed token, once it took those before "
        'it:</p><div class="row">',
        *(_positions(result, domain, lowest, colours) for domain in domains),
        "</div>",
    ]
    if result.measurements:
        points = [
            (
                one.measured,
                one.predicted,
                f"{one.domain}, {one.candidate}, k = {one.length}, batch {one.batch}, "
                f"T = {one.temperature:g}",
            )
            for one in result.measurements
        ]
        title = "Predicted against measured speed-up"
        parts.append(
            f"<p>{escape(verdict(result))} Dots in the grey band are within {TOLERANCE:.0%}.</p>"
            + _figure(title, dots(title, points, tolerance=TOLERANCE))
        )
    return "\n".join(parts)


def _positions(result: Evaluation, domain: str, temperature: float, colours: dict[str, int]) -> str:
    found = [one for one in result.acceptance if (one.domain, one.temperature) == (domain, temperature)]
    longest = max((len(one.by_position) for one in found), default=1)
    series = [
        Series(one.candidate, [100 * rate for rate in one.by_position], colours[one.candidate])
        for one in found
    ]
    title = f"Acceptance by position: {domain}"
    places = [str(place + 1) for place in range(longest)]
    return _figure(title, lines(title, places, series, top=100.0, axis="position in the proposal", unit="%"))


def _tables(result: Evaluation) -> str:
    parts = ["<h2>Tables</h2>", "<h3>Predicted speed-up at the best length</h3>"]
    heads = ["domain", "candidate", "accepted by position", "mean length"]
    heads += [f"batch {batch}, T = {warm:g}" for warm in result.temperatures for batch in result.batches]
    rows = []
    for found in result.acceptance:
        if found.temperature != min(result.temperatures):
            continue
        cells = [found.domain, found.candidate]
        cells.append(", ".join(f"{rate:.0%}" for rate in found.by_position) or "-")
        cells.append(f"{found.lengths[-1].mean_acceptance_length:.2f}")
        for warm in result.temperatures:
            for batch in result.batches:
                best = result.best(found.domain, found.candidate, warm, batch)
                cells.append("-" if best is None else f"{best.predicted:.2f}x, k = {best.length}")
        rows.append(cells)
    parts.append(_table(heads, rows, text=3))
    parts.append("<h3>Costs, and the acceptance from which on drafting pays</h3>")
    heads = ["candidate", "batch", "plain step", "a drafted token", "in verifier steps"]
    heads += [f"pays from, k = {length}" for length in result.lengths]
    rows = []
    for cost in result.costs:
        even = [cost.break_even[length] for length in result.lengths]
        rows.append(
            [
                cost.candidate,
                str(cost.batch),
                f"{cost.plain_step_ms:.1f} ms",
                f"{cost.token_ms:.2f} ms",
                f"{cost.relative_token_cost:.1%}",
                *("never" if rate is None else f"{rate:.0%}" for rate in even),
            ]
        )
    parts.append(_table(heads, rows))
    if result.measurements:
        parts.append("<h3>Predicted against measured, same prompts</h3>")
        heads = ["domain", "draft", "T", "k", "batch", "tokens/s plain", "tokens/s drafts"]
        heads += ["predicted", "measured", "error", "tokens a step, predicted", "seen"]
        heads += ["step in plain steps, predicted", "seen"]
        parts.append(
            _table(
                heads,
                [
                    [
                        *measurement_cells(one),
                        f"{one.predicted_length:.2f}",
                        f"{one.measured_length:.2f}",
                        f"{one.predicted_step_ratio:.2f}",
                        f"{one.measured_step_ratio:.2f}",
                    ]
                    for one in result.measurements
                ],
                text=2,
            )
        )
    if result.own_methods:
        parts.append("<h3>vLLM's own ways to propose, each in an engine of its own</h3>")
        heads = ["domain", "method", "k", "accepted", "mean length", "batch", "tokens/s plain"]
        heads += ["tokens/s", "speed-up"]
        parts.append(_table(heads, [own_cells(one) for one in result.own_methods], text=2))
        parts.append(f"<p>{escape(own_words(result))}</p>")
    return "\n".join(parts)


def _words() -> str:
    told = (
        ("acceptance", "the share of proposed tokens that the verifier keeps"),
        ("mean length", "tokens per step of the verifier, its own one counted; plain decoding has 1"),
        ("k", "how many tokens a draft proposes in a step"),
        ("batch", "how many requests are answered at the same time"),
        ("T", "sampling temperature; 0 always takes the likeliest token"),
        ("pays from", "the share of judged tokens that must be accepted so that drafting is no slower"),
    )
    items = "".join(f"<dt><b>{escape(name)}</b></dt><dd>{escape(text)}</dd>" for name, text in told)
    return f"<h2>Words</h2><dl>{items}</dl>"


def _notes(result: Evaluation) -> str:
    texts = [
        f"{one.name}: {one.prompts} prompts ({one.tokens} tokens) at temperature 0, {one.samples} sampled; "
        f"{one.origin}."
        for one in result.domains
    ]
    items = "".join(f"<li>{escape(text)}</li>" for text in [*origins(result), *result.notes, *texts])
    return f"<h2>How far these figures go</h2><ul>{items}</ul>"


def _legend(result: Evaluation, colours: dict[str, int]) -> str:
    keys = []
    for candidate in result.candidates:
        about = {"draft": "draft", "layers": "the verifier's own layers", "lookup": "no drafter needed"}
        colour = colours[candidate.name] % COLOURS
        keys.append(
            f'<svg class="key" viewBox="0 0 10 10" aria-hidden="true"><rect class="c{colour}" width="10" '
            f'height="10"/></svg>{escape(candidate.name)} '
            f'<span class="soft">({escape(about[candidate.kind])})</span>'
        )
    return f"<p>{''.join(keys)}</p>"


def _figure(caption: str, chart: str) -> str:
    return f"<figure><figcaption>{escape(caption)}</figcaption>{chart}</figure>"


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], text: int = 1) -> str:
    """A table whose first `text` columns are words."""

    def cell(tag: str, place: int, value: str) -> str:
        scope = ' scope="col"' if tag == "th" else ""
        kind = ' class="t"' if place < text else ""
        return f"<{tag}{scope}{kind}>{escape(value)}</{tag}>"

    def line(tag: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(cell(tag, place, value) for place, value in enumerate(cells)) + "</tr>"

    body = "".join(line("td", row) for row in rows)
    return f'<div class="scroll"><table><thead>{line("th", heads)}</thead><tbody>{body}</tbody></table></div>'


def _colours() -> str:
    light = "".join(f".c{n}{{fill:{one}}}.l{n}{{stroke:{one}}}" for n, (one, _) in enumerate(_PALETTE))
    dark = "".join(f".c{n}{{fill:{one}}}.l{n}{{stroke:{one}}}" for n, (_, one) in enumerate(_PALETTE))
    return f"{light}@media (prefers-color-scheme:dark){{{dark}}}"
