"""vLLM's own ways to propose beside the drafts: `--method NAME=METHOD[:MODEL][,k=N]`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import ValidationError

from cluster.config import FleetConfig
from cluster.evaluation.candidates import NAME, EvaluationError
from cluster.evaluation.result import OwnMethod
from deployments.evaluation.walk import group
from deployments.models import IncompatibleDraft, ModelSourceError, check_head, resolve_model
from deployments.verifier.methods import METHODS, ProposerSettings
from deployments.verifier.requests import DRAFT_KEY
from router.types import PLAIN

if TYPE_CHECKING:
    from cluster.evaluation.run import Progress, Task, Texts
    from deployments.evaluation.scoring import VerifierText
    from deployments.verifier.offline import OfflineEngine

#: Batches of one size that are run against the clock in each domain.
_BATCHES: Final = 3
_WRITTEN: Final = re.compile(r"^(?P<method>[^:,]+)(:(?P<model>.+?))?(,k=(?P<k>[0-9]+))?$")

#: (domain, rows) -> tokens per second.
Rates = Mapping[tuple[str, int], float]


@dataclass(frozen=True, slots=True)
class OwnCandidate:
    """One way of vLLM's own to propose.

    Attributes:
        name: its name in tables.
        settings: as `verifier.proposer` would have them, the model as a folder.
        source: the model as people write it; empty without one.
    """

    name: str
    settings: ProposerSettings
    source: str


def find_methods(
    config: FleetConfig, verifier: Path, given: Sequence[str], longest: int
) -> list[OwnCandidate]:
    """Read `--method` options.

    Args:
        config: the fleet.
        verifier: the verifier's checkpoint folder.
        given: the options.
        longest: tokens proposed in a step where the option does not say.

    Raises:
        EvaluationError: one cannot be used; the text says which, and what to write.
    """
    found: list[OwnCandidate] = []
    for text in given:
        name, _, rest = text.partition("=")
        parts = _WRITTEN.match(rest)
        if parts is None or not NAME.match(name):
            raise EvaluationError(
                f"--method {text}: write NAME=METHOD, NAME=METHOD:MODEL or either with ,k=N behind; for "
                f"example --method lookup=ngram,k=3. Methods: {', '.join(METHODS)}"
            )
        if name in config.drafts or name in {one.name for one in found}:
            raise EvaluationError(
                f"--method {text}: there is a candidate {name!r} already; take another name"
            )
        try:
            found.append(_candidate(config, verifier, name, parts, longest))
        except ValidationError as error:
            said = error.errors(include_url=False)[0]["msg"].removeprefix("Value error, ")
            raise EvaluationError(f"--method {text}: {said}") from error
        except (ModelSourceError, IncompatibleDraft) as error:
            raise EvaluationError(f"--method {text}: {error}") from error
    return found


def _candidate(
    config: FleetConfig, verifier: Path, name: str, parts: re.Match[str], longest: int
) -> OwnCandidate:
    base = Path(config.base_folder) if config.base_folder else None
    data: dict[str, Any] = {"method": parts["method"], "num_speculative_tokens": int(parts["k"] or longest)}
    if parts["model"]:
        data["model"] = parts["model"]
    settings = ProposerSettings.model_validate(data)
    type(config.verifier).model_validate({**config.verifier.model_dump(), "proposer": settings})
    if settings.model is not None:
        head = resolve_model(settings.model, base=base)
        check_head(verifier, head, settings.method, settings.num_speculative_tokens)
        settings = settings.model_copy(update={"model": str(head)})
    return OwnCandidate(name, settings, parts["model"] or "")


def plain_rates(task: Task, engine: OfflineEngine, texts: Texts) -> Rates:
    """Plain decoding on the fleet's own engine, on the prompts that the methods are then given."""
    from deployments.evaluation.own_methods import rate_of

    extra = {DRAFT_KEY: PLAIN}
    return {
        (domain, rows): rate_of(
            engine, _batches(texts[domain, 0.0], rows), task.effort.timed_steps, extra_args=extra
        )
        for domain in task.config.domains
        for rows in task.effort.batches
    }


def measure_methods(task: Task, texts: Texts, plain: Rates, progress: Progress) -> list[OwnMethod]:
    """Run each method in an engine of its own, one after another.

    Args:
        task: what is evaluated.
        texts: greedy texts of plain decoding.
        plain: speeds of plain decoding on the same prompts.
        progress: who is told how far it is.
    """
    from deployments.evaluation.own_methods import rate_of, write_again
    from deployments.verifier.offline import OfflineEngine

    progress.stage("vLLM's own ways to propose")
    changed: dict[str, Any] = {"enforce_eager": True} if task.effort.eager else {}
    found = []
    for number, method in enumerate(task.methods):
        progress.step(number / len(task.methods), method.name)
        settings = task.config.verifier.model_copy(update={"proposer": method.settings})
        engine = OfflineEngine(settings, task.verifier, 0, **changed)
        try:
            for domain in task.config.domains:
                greedy = texts[domain, 0.0]
                fared = write_again(engine, greedy)
                for rows in task.effort.batches:
                    rate = rate_of(engine, _batches(greedy, rows), task.effort.timed_steps)
                    before = plain[domain, rows]
                    found.append(
                        OwnMethod(
                            domain=domain,
                            name=method.name,
                            method=method.settings.method,
                            model=method.source or None,
                            length=method.settings.num_speculative_tokens,
                            batch=rows,
                            acceptance_rate=round(fared.rate, 4),
                            mean_acceptance_length=round(fared.length, 4),
                            same=fared.same,
                            texts=fared.texts,
                            plain_rate=round(before, 3),
                            rate=round(rate, 3),
                            speedup=round(rate / before, 4) if before else 0.0,
                        )
                    )
        finally:
            engine.close()
    progress.step(1.0)
    return found


def _batches(texts: Sequence[VerifierText], rows: int) -> list[list[VerifierText]]:
    return [[texts[index] for index in chosen] for chosen in group(len(texts), rows)[:_BATCHES]]
