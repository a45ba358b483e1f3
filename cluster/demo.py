"""Real requests of four domains, with and without speculation, and a table of what it gave."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from cluster.api import ApiProblem, FleetApi

#: Written for small models: one plain question each, none of them among the configuration's examples.
PROMPTS: dict[str, tuple[str, ...]] = {
    "general": (
        "Write a short letter inviting a friend to a picnic by the lake.",
        "What are some good habits for starting the day?",
        "Describe a quiet village in the mountains in winter.",
        "How do I keep houseplants healthy while I am on holiday?",
        "Give me three reasons to learn a new language.",
        "Tell me a short story about a fox who finds a map.",
        "What should I think about before adopting a dog?",
        "Explain how a bicycle stays upright.",
    ),
    "code": (
        "Write a Python function that counts how often each word occurs in a string.",
        "Write a Python function that returns the largest number in a list without using max().",
        "Write a Python class for a stack with push, pop and is_empty methods.",
        "Write a Python function that checks whether a string is a palindrome.",
        "Write a Python function that merges two sorted lists into one sorted list.",
        "Write a Python function that returns the first n Fibonacci numbers.",
        "Write a Python function that removes duplicates from a list and keeps the order.",
        "Write a Python function that reads a CSV file and returns its rows as dictionaries.",
    ),
    "medical": (
        "What are the symptoms of iron deficiency anemia?",
        "How is type 2 diabetes treated?",
        "What causes migraine headaches?",
        "What are the risk factors for high blood pressure?",
        "How is asthma diagnosed in children?",
        "What are the symptoms of a urinary tract infection?",
        "What are the treatments for rheumatoid arthritis?",
        "What is sleep apnea, and who gets it?",
    ),
    "finance": (
        "Why do share prices rise and fall?",
        "How does compound interest work in a savings account?",
        "What should I consider before taking out a mortgage?",
        "Why do companies issue dividends to shareholders?",
        "What does a high price-to-earnings ratio tell an investor?",
        "How do central banks use interest rates to control inflation?",
        "How can I build an emergency fund on a small income?",
        "What is diversification, and why does it lower risk?",
    ),
}
PLAIN = "none"


@dataclass
class Tally:
    """What the requests of one domain added up to.

    Attributes:
        tokens: generated tokens, by whether drafts proposed.
        seconds: time from sending a request to its whole answer, likewise.
        recognised: domains that the fleet saw, in order of first appearance.
        drafts: drafts that served, likewise.
    """

    tokens: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    seconds: dict[bool, float] = field(default_factory=lambda: {True: 0.0, False: 0.0})
    recognised: dict[str, None] = field(default_factory=dict)
    drafts: dict[str, None] = field(default_factory=dict)
    proposed: int = 0
    accepted: int = 0
    steps: int = 0

    def add(self, speculative: bool, seconds: float, answer: dict[str, Any]) -> None:
        """Counts one answer."""
        self.tokens[speculative] += int(answer["usage"]["completion_tokens"])
        self.seconds[speculative] += seconds
        if not speculative:
            return
        told = answer["specfleet"]
        self.recognised[str(told["domain"])] = None
        self.drafts |= {
            str(draft["name"]): None for draft in told["drafts"] if draft["name"] not in (None, PLAIN)
        }
        self.proposed += int(told["proposed"])
        self.accepted += int(told["accepted"])
        self.steps += int(told["steps"])

    def rate(self, speculative: bool) -> float:
        """Tokens per second."""
        seconds = self.seconds[speculative]
        return self.tokens[speculative] / seconds if seconds else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted of proposed tokens."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per verifier step that carried a proposal, the verifier's own token counted."""
        return 1 + self.accepted / self.steps if self.steps else 1.0

    @property
    def gain(self) -> float:
        """How many times faster with speculation."""
        plain = self.rate(False)
        return self.rate(True) / plain if plain else 0.0


@dataclass
class Outcome:
    """A whole demonstration.

    Attributes:
        tallies: by domain.
        answers: prompts that were answered both ways.
        equal: those whose two answers are the same text.
    """

    tallies: dict[str, Tally]
    answers: int = 0
    equal: int = 0


def run(api: FleetApi, console: Console, *, max_tokens: int = 96, per_domain: int = 3) -> Outcome:
    """Sends the requests one at a time and prints the table.

    Each prompt is answered with drafts and without, right after each other and in alternating order, so that
    whatever else the machine does falls on both alike.

    Raises:
        cluster.api.ApiProblem: the fleet does not answer, or refused.
    """
    _needs_drafts(api)
    outcome = Outcome({domain: Tally() for domain in PROMPTS})
    rounds = [(domain, prompts[index]) for index in range(per_domain) for domain, prompts in PROMPTS.items()]
    with console.status("warming up") as shown:
        _ask(api, rounds[0][1], max_tokens, speculative=True)
        for number, (domain, prompt) in enumerate(rounds):
            shown.update(f"asking {api.model}: {number + 1} of {len(rounds)}, {domain}")
            # Fills the verifier's prefix cache, or whichever comes second would have it easier.
            _ask(api, prompt, 1, speculative=False)
            texts = []
            for speculative in (True, False) if number % 2 == 0 else (False, True):
                seconds, answer = _ask(api, prompt, max_tokens, speculative=speculative)
                outcome.tallies[domain].add(speculative, seconds, answer)
                texts.append(answer["choices"][0]["message"]["content"])
            outcome.answers += 1
            outcome.equal += texts[0] == texts[1]
    console.print(table(outcome))
    console.print(
        f"{outcome.equal} of {outcome.answers} answers are the same text with and without drafts. "
        "Greedy, one request at a time.",
        style="dim",
    )
    return outcome


def _needs_drafts(api: FleetApi) -> None:
    for verifier in api.status().get("verifiers") or []:
        method = (verifier.get("proposer") or {}).get("method")
        if method:
            raise ApiProblem(
                f"in this fleet vLLM's own {method} proposes, which cannot be switched off to compare: "
                f"`specfleet evaluate FILE --method own={method}`, with a configuration with drafts, does "
                "that; `specfleet status` shows what is accepted"
            )


def table(outcome: Outcome) -> Table:
    """The figures as a table, one row per domain."""
    shown = Table(title="What the drafts gave", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("prompts\nabout", "recog-\nnised", "draft\nused"):
        shown.add_column(name, no_wrap=True)
    for name in ("accep-\nted", "mean\nlength", "tokens/s\ndrafts", "tokens/s\nplain", "speed-\nup"):
        shown.add_column(name, justify="right", no_wrap=True)
    for domain, tally in outcome.tallies.items():
        shown.add_row(
            domain,
            "\n".join(tally.recognised) or "-",
            "\n".join(tally.drafts) or "-",
            f"{tally.acceptance_rate:.0%}",
            f"{tally.acceptance_length:.2f}",
            f"{tally.rate(True):.1f}",
            f"{tally.rate(False):.1f}",
            f"{tally.gain:.2f}x",
        )
    return shown


def _ask(api: FleetApi, prompt: str, max_tokens: int, *, speculative: bool) -> tuple[float, dict[str, Any]]:
    begun = time.perf_counter()
    answer = api.answer(
        [{"role": "user", "content": prompt}], max_tokens=max_tokens, draft=None if speculative else PLAIN
    )
    return time.perf_counter() - begun, answer
