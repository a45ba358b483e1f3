"""Prompt files: what is read, what is held back, what is refused and how."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from deployments.distillation.errors import DistillError
from deployments.distillation.prompts import MOST_HELD_BACK, fitting, read_prompts, to_ids
from tests.distillation.tiny import write_tokenizer


def write(path: Path, *lines: object) -> Path:
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


def questions(count: int) -> list[dict[str, str]]:
    return [{"prompt": f"What is {number}?"} for number in range(count)]


def test_both_forms_are_read_and_repetitions_count_once(tmp_path: Path) -> None:
    talk = {"messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]}
    file = write(tmp_path / "p.jsonl", *questions(6), "", talk, questions(1)[0], {"prompt": "Why?", "id": 3})
    prompts = read_prompts(file, 0.25)
    assert len(prompts.held_back) == 2
    everything = prompts.train + prompts.held_back
    assert len(everything) == 8
    assert talk["messages"] in everything
    assert [{"role": "user", "content": "Why?"}] in everything


def test_the_split_depends_on_the_content_alone(tmp_path: Path) -> None:
    lines = questions(40)
    one = read_prompts(write(tmp_path / "a.jsonl", *lines), 0.2)
    other = read_prompts(write(tmp_path / "b.jsonl", *lines[::-1]), 0.2)
    assert one.held_back == other.held_back
    longer = read_prompts(write(tmp_path / "c.jsonl", *questions(44)), 0.2)
    # What was trained on before may be held back later, but only a little of it.
    assert sum(prompt in longer.held_back for prompt in one.held_back) >= 6
    assert len(read_prompts(write(tmp_path / "d.jsonl", *questions(4)), 0.01).held_back) == 1
    assert len(read_prompts(write(tmp_path / "e.jsonl", *questions(400)), 0.9).held_back) == MOST_HELD_BACK


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "holds 0 different prompts; at least 4 are needed"),
        ([{"prompt": "a"}] * 9, "holds 1 different prompts"),
        ([*questions(4), {"prompt": "  "}], "line 5: the prompt is empty"),
        ([*questions(4), {"text": "x"}], 'line 5 has neither "prompt" (text) nor "messages"'),
        ([*questions(4), ["x"]], "line 5 has neither"),
        ([*questions(4), "{"], "line 5 is no JSON"),
        ([{"messages": [{"role": "user"}]}], 'line 1: every message needs "role" and "content"'),
        ([{"messages": []}], "line 1 has neither"),
    ],
)
def test_what_cannot_be_used_is_named(tmp_path: Path, lines: list[object], said: str) -> None:
    with pytest.raises(DistillError) as caught:
        read_prompts(write(tmp_path / "p.jsonl", *lines), 0.1)
    assert said in str(caught.value)
    assert "p.jsonl" in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(DistillError, match=r"none\.jsonl cannot be read: No such file"):
        read_prompts(tmp_path / "none.jsonl", 0.1)
    (tmp_path / "latin.jsonl").write_bytes(b'{"prompt": "\xe9"}')
    with pytest.raises(DistillError, match=r"latin\.jsonl cannot be read"):
        read_prompts(tmp_path / "latin.jsonl", 0.1)


def test_token_ids_with_and_without_a_chat_template(tmp_path: Path) -> None:
    messages = [{"role": "user", "content": "w7 w8"}]
    write_tokenizer(tmp_path)
    assert to_ids(AutoTokenizer.from_pretrained(tmp_path), messages) == [1, 7, 8, 2, 3]
    (tmp_path / "plain").mkdir()
    write_tokenizer(tmp_path / "plain", chat=False)
    assert to_ids(AutoTokenizer.from_pretrained(tmp_path / "plain"), messages) == [7, 8]


def test_prompts_that_are_too_long() -> None:
    assert fitting([[1, 2, 3], [4], []], 2) == [[4]]
    with pytest.raises(DistillError, match="no prompt has at most 0 tokens"):
        fitting([[1, 2, 3]], 0)
