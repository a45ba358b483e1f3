"""What people read: tables of a terminal's width, and one page that needs nothing else."""

from __future__ import annotations

import io
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console

from cluster.evaluation import terminal
from cluster.evaluation.chart import Series, bars, dots, lines
from cluster.evaluation.html import page
from cluster.evaluation.progress import TerminalProgress
from cluster.evaluation.result import Evaluation
from cluster.files import write_whole
from tests.cluster.evaluation.made_up import evaluation

GAINS = {
    ("medical", "general", 1): (2, 1.17),
    ("medical", "first-7-layers", 1): (2, 0.81),
    ("medical", "general", 16): (1, 0.98),
    ("medical", "first-7-layers", 16): (1, 0.7),
    ("finance", "general", 1): (2, 1.11),
    ("finance", "first-7-layers", 1): (2, 0.81),
    ("finance", "general", 16): (1, 1.08),
    ("finance", "first-7-layers", 16): (1, 0.7),
}


def shown(result: Evaluation, width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(terminal.render(result))
    return console.export_text()


def test_the_terminal_shows_advice_figures_and_what_follows() -> None:
    text = shown(evaluation(GAINS))
    assert text.index("Use general for medical, k = 2: 1.17x") < text.index("Predicted speed-up")
    assert "1.17x k2" in text
    assert "40 30" in text
    assert "2.0 ms = 3.3%" in text
    assert "never" in text
    assert "1.12x" in text
    assert "1.10x" in text
    assert "1 of 1 predictions are within 15% of the measurement" in text
    assert "generalist: code" in text
    assert "--prompts medical=FILE.jsonl" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "…" not in text  # nothing is cut


def test_a_prediction_that_is_off_is_not_called_right() -> None:
    text = shown(evaluation(GAINS, measured=0.9))
    assert "0 of 1 predictions are within 15%" in text
    assert "+24.4%" in text


class Reader(HTMLParser):
    """Notes what a page would fetch or run, and whether its tags close."""

    VOID = frozenset({"meta", "br", "link", "img"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.attributes += attrs

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(text: str) -> Reader:
    reader = Reader()
    reader.feed(text)
    reader.close()
    assert not reader.open
    return reader


def test_the_page_needs_nothing_from_elsewhere_and_runs_nothing() -> None:
    reader = read(page(evaluation(GAINS)))
    assert not {"script", "link", "img", "iframe", "object"} & set(reader.seen)
    assert not [name for name, _ in reader.attributes if name in ("src", "href") or name.startswith("on")]
    assert "url(" not in page(evaluation(GAINS))


def test_the_page_says_what_it_means_before_it_shows_figures() -> None:
    text = read(page(evaluation(GAINS))).text
    places = [text.index(part) for part in ("What it means", "Charts", "Tables", "Words", "How far")]
    assert places == sorted(places)
    assert "Use general for medical" in text
    assert "1.17x, k = 2" in text


def test_every_chart_can_be_read_aloud() -> None:
    text = page(evaluation(GAINS))
    charts = re.findall(r"<svg role.*?</svg>", text, re.DOTALL)
    assert len(charts) == 2 + 2 + 1  # a batch size, a domain, predicted against measured
    for chart in charts:
        root = ElementTree.fromstring(chart)
        assert root.get("aria-label")
        assert root.findtext("title")
        assert root.findtext("desc")
    assert "general 1.17x" in charts[0]


def test_colours_are_given_for_light_and_dark() -> None:
    text = page(evaluation(GAINS))
    assert text.count("prefers-color-scheme:dark") == 2
    used = {int(number) for number in re.findall(r'class="c(\d+)"', text)}
    assert all(text.count(f".c{number}{{fill:") == 2 for number in used)


def test_names_from_outside_cannot_break_the_page() -> None:
    text = page(evaluation(GAINS, odd='<script>alert("&")</script>'))
    assert "script" not in read(text).seen
    assert "&lt;script&gt;" in text


def test_a_result_survives_json() -> None:
    result = evaluation(GAINS)
    assert Evaluation.model_validate_json(result.model_dump_json()) == result


def test_without_measurements_nothing_is_claimed() -> None:
    result = evaluation(GAINS, measured=None)
    assert "within 15%" not in shown(result)
    assert "measured" not in read(page(result)).text.split("Words")[0]


def test_bars_are_as_tall_as_their_values() -> None:
    chart = ElementTree.fromstring(
        bars("t", ["a"], [Series("x", [1.0], 0), Series("y", [0.5], 1)], reference=1.0)
    )
    tall = [float(rect.get("height", 0)) for rect in chart.iter("rect")]
    assert tall[0] == pytest.approx(2 * tall[1], rel=1e-2)
    bottoms = {round(float(r.get("y", 0)) + float(r.get("height", 0)), 1) for r in chart.iter("rect")}
    assert len(bottoms) == 1


def test_charts_take_gaps_and_few_points() -> None:
    ElementTree.fromstring(bars("t", ["a", "b"], [Series("x", [None, 1.2], 0)], reference=1.0))
    ElementTree.fromstring(lines("t", ["1"], [Series("x", [50.0], 9), Series("y", [], 1)], top=100, axis="k"))
    ElementTree.fromstring(dots("t", [(0.2, 3.0, "far")], tolerance=0.15))


def test_files_are_whole_or_not_there(tmp_path: Path) -> None:
    target = tmp_path / "a.html"
    write_whole(target, "one")
    write_whole(target, "two")
    assert target.read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]
    with pytest.raises(UnicodeEncodeError):
        write_whole(target, "\ud800")
    assert target.read_text() == "two"
    assert [path.name for path in tmp_path.iterdir()] == ["a.html"]


def test_progress_knows_what_is_left_and_says_it_line_by_line(tmp_path: Path) -> None:
    now = [0.0]
    with (tmp_path / "out").open("w") as file:
        progress = TerminalProgress(file, budget_s=300.0, clock=lambda: now[0])
        progress.stage("starting the verifier and the drafters")
        now[0] = 40.0
        progress.stage("learning what steps cost")
        progress.step(0.5, "batch 1")
        progress.step(0.6, "too soon to say again")
        now[0] = 100.0
        progress.stage("measuring")
        progress.step(0.5, "code")
        progress.close()
    text = (tmp_path / "out").read_text()
    assert "too soon" not in text
    assert "100 s  measuring" in text
    assert progress.left_s(0.05) is None
    assert progress.left_s(0.5) == pytest.approx(100.0)
    assert progress.left_s(0.2) == pytest.approx(200.0)  # what the budget leaves
