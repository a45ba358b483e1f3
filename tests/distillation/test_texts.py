"""Texts on disk, and which ones are asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
import torch

from deployments.distillation.errors import DistillError, NoSpace, Stopped
from deployments.distillation.progress import Stop
from deployments.distillation.settings import TextSettings
from deployments.distillation.texts import Request, Text, TextStore
from deployments.distillation.writing import Scribe, training_requests, write_training_texts
from tests.distillation.tiny import text_of

VERIFIER = "digest"


def request(*prompt: int, seed: int = 0) -> Request:
    return Request(prompt, 0.8 if seed else 0.0, seed, 8, 2)


def answer(prompt: Sequence[int], tokens: int) -> Text:
    return text_of(prompt, [9] * tokens, [[(9, 0.7), (4, 0.2)]] * tokens)


class CountingWriter:
    """Answers a prompt [a, b, ...] with `a` tokens, in any order but the asked one."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.open = 0

    def write(self, requests: Sequence[Request]) -> Generator[tuple[int, Text], None, None]:
        for place in reversed(range(len(requests))):
            self.asked.append(requests[place])
            yield place, answer(requests[place].prompt, requests[place].prompt[0])

    def close(self) -> None:
        self.open -= 1

    def start(self) -> CountingWriter:
        self.open += 1
        return self


def scribe(folder: Path, writer: CountingWriter, stop: Stop | None = None, shard: int = 2) -> Scribe:
    return Scribe(TextStore(folder), VERIFIER, writer.start, lambda *_: None, stop or Stop(), shard)


def same(a: Text, b: Text) -> bool:
    pairs = [(a.prompt, b.prompt), (a.answer, b.answer), (a.top_ids, b.top_ids)]
    return all(torch.equal(one, other) for one, other in [*pairs, (a.top_logprobs, b.top_logprobs)])


def test_texts_come_back_as_they_were(tmp_path: Path) -> None:
    texts = [answer([5, 6], 3), answer([7], 1), answer([8, 9, 10], 5)]
    store = TextStore(tmp_path)
    store.add([("a", texts[0]), ("b", texts[1])])
    store.add([("c", texts[2])])
    again = TextStore(tmp_path)
    assert len(again) == 3
    assert "b" in again
    assert "d" not in again
    assert all(same(one, other) for one, other in zip(again.get("cab"), [texts[2], *texts[:2]], strict=True))


def test_a_key_names_all_that_decides_a_text() -> None:
    base = request(1, 2)
    others = [
        request(1, 3),
        request(1, 2, seed=1),
        Request((1, 2), 0.0, 0, 9, 2),
        Request((1, 2), 0.0, 0, 8, 3),
    ]
    keys = {one.key(VERIFIER) for one in [base, *others]} | {base.key("another verifier")}
    assert len(keys) == 6
    assert base.key(VERIFIER) == request(1, 2).key(VERIFIER)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    TextStore(tmp_path).add([("a", answer([5], 2))])
    [path] = tmp_path.glob("*.safetensors")
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DistillError, match=rf"{path.name} is damaged .* remove it"):
        TextStore(tmp_path)


def test_only_what_is_missing_is_written(tmp_path: Path) -> None:
    writer = CountingWriter()
    wanted = [request(2), request(3), request(4), request(2)]
    texts = scribe(tmp_path, writer).all_of(wanted, "texts")
    assert [len(text.answer) for text in texts] == [2, 3, 4, 2]
    assert len(writer.asked) == 3
    later = scribe(tmp_path, writer)
    later.all_of([*wanted, request(5)], "texts")
    assert writer.asked[3:] == [request(5)]
    idle = CountingWriter()
    scribe(tmp_path, idle).all_of(wanted, "texts")
    assert idle.open == 0  # a verifier that is not needed is not started


def test_a_stop_keeps_what_was_written_and_the_next_run_writes_the_rest(tmp_path: Path) -> None:
    stop, writer = Stop(), CountingWriter()
    wanted = [request(number) for number in range(2, 9)]

    def report(what: str, done: float, total: float, remark: str) -> None:
        stop.wanted = done == 3

    stopped = Scribe(TextStore(tmp_path), VERIFIER, writer.start, report, stop, 2)
    with pytest.raises(Stopped):
        stopped.all_of(wanted, "texts")
    assert len(TextStore(tmp_path)) == 3
    scribe(tmp_path, writer).all_of(wanted, "texts")
    assert sorted(one.prompt[0] for one in writer.asked) == list(range(2, 9))


def test_greedy_answers_come_first_then_sampled_ones_until_there_are_enough(tmp_path: Path) -> None:
    writer = CountingWriter()
    settings = TextSettings(tokens=40, max_tokens=10, top_k=2)
    prompts = [[2, 1], [3, 1], [4, 1]]
    texts = write_training_texts(scribe(tmp_path, writer), prompts, settings)
    assert sum(len(text.answer) for text in texts) >= 40
    assert sum(len(text.answer) for text in texts[:-1]) < 40
    firsts = {tuple(text.prompt.tolist()) for text in texts[:3]}
    assert firsts == {(2, 1), (3, 1), (4, 1)}
    greedy = [one for one in writer.asked if one.temperature == 0]
    assert len(greedy) == 3
    seeds = {(one.prompt, one.seed) for one in writer.asked}
    assert len(seeds) == len(writer.asked)  # no answer twice


def test_an_interrupted_run_chooses_the_same_texts_as_one_that_was_not(tmp_path: Path) -> None:
    settings = TextSettings(tokens=60, max_tokens=10, top_k=2)
    prompts = [[number, 1] for number in range(2, 8)]
    whole = write_training_texts(scribe(tmp_path / "a", CountingWriter()), prompts, settings)
    # The other run has a part already, from somewhere in the middle.
    half = scribe(tmp_path / "b", CountingWriter())
    half.all_of(training_requests(prompts, settings)[4:11], "texts")
    resumed = write_training_texts(scribe(tmp_path / "b", CountingWriter()), prompts[::-1], settings)
    assert len(whole) == len(resumed)
    assert all(same(one, other) for one, other in zip(whole, resumed, strict=True))


def test_a_verifier_that_says_nothing_is_told(tmp_path: Path) -> None:
    with pytest.raises(DistillError, match="answers every prompt with nothing"):
        write_training_texts(scribe(tmp_path, SilentWriter()), [[0, 1]], TextSettings(top_k=2))


class SilentWriter(CountingWriter):
    def write(self, requests: Sequence[Request]) -> Generator[tuple[int, Text], None, None]:
        for place, one in enumerate(requests):
            empty = torch.zeros(0, 2)
            yield place, Text(torch.tensor(one.prompt), torch.zeros(0), empty, empty)


_FILL_UP = """
import resource, sys
from pathlib import Path
from deployments.distillation.errors import NoSpace
from deployments.distillation.texts import TextStore
from tests.distillation.tiny import text_of
store = TextStore(Path(sys.argv[1]))
store.add([("a", text_of([5], [9], [[(9, 0.5), (4, 0.2)]]))])
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
big = text_of([5], [9] * 5000, [[(9, 0.5), (4, 0.2)]] * 5000)
try:
    store.add([("b", big)])
except NoSpace as error:
    print(error)
    sys.exit(3)
"""


@pytest.mark.process
def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _FILL_UP, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 3, done.stderr
    assert "no room to write (File too large)" in done.stdout
    assert "run the same command again" in done.stdout
    assert len(TextStore(tmp_path)) == 1
    assert len(list(tmp_path.iterdir())) == 1


def test_an_error_in_the_middle_of_a_write_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import errno
    import os

    store = TextStore(tmp_path)
    store.add([("a", answer([5], 2))])
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NoSpace, match=r"no room to write \(No space left on device\)"):
        store.add([("b", answer([6], 2))])
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_leftovers_of_a_killed_run_go(tmp_path: Path) -> None:
    (tmp_path / ".partial-abc").write_bytes(b"half")
    TextStore(tmp_path)
    assert list(tmp_path.iterdir()) == []
