"""An evaluation from start to end: write texts, score candidates, learn costs, predict, measure, advise."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from cluster.config import FleetConfig
from cluster.evaluation.advice import choose
from cluster.evaluation.candidates import LOOKUPS, Candidate, EvaluationError
from cluster.evaluation.configuration import as_yaml, changes, whole
from cluster.evaluation.effort import Effort
from cluster.evaluation.own import OwnCandidate, measure_methods, plain_rates
from cluster.evaluation.prompts import DomainPrompts, spread
from cluster.evaluation.result import Advice, CandidateInfo, DomainInfo, Evaluation
from cluster.evaluation.tables import acceptance_of, costs_of, speeds_of
from deployments.drafter.build import build_engine
from deployments.evaluation.drafters import DrafterProcesses, DraftToServe
from deployments.evaluation.drift import Yardsticks
from deployments.evaluation.lookup import Source
from deployments.evaluation.scoring import VerifierText, score_draft, score_source
from deployments.evaluation.walk import ScoredText
from deployments.link.settings import LinkSettings
from deployments.verifier.plan import ProposerPlan

if TYPE_CHECKING:
    from collections.abc import Callable

    from deployments.evaluation.rig import Rig

#: A proposal that comes late would show as one that was never made; what it costs is what is asked here.
_PATIENCE_MS = 5000.0


class Progress(Protocol):
    """Who is told how far it is."""

    def stage(self, name: str) -> None:
        """Another part begins."""

    def step(self, done: float, what: str = "") -> None:
        """So much of the part is done, 0 to 1."""


@dataclass(frozen=True)
class Task:
    """What is evaluated.

    Attributes:
        config: the fleet.
        file: its file, for people.
        verifier: folder of the verifier's checkpoint.
        candidates: who may propose.
        prompts: by domain.
        effort: how much is done.
        quick: whether that is the quick one.
        remarks: what has to be said about it already.
        methods: vLLM's own ways to propose that are measured beside them.
    """

    config: FleetConfig
    file: str
    verifier: Path
    candidates: Sequence[Candidate]
    prompts: Mapping[str, DomainPrompts]
    effort: Effort
    quick: bool
    remarks: Sequence[str]
    methods: Sequence[OwnCandidate] = ()

    @property
    def models(self) -> list[Candidate]:
        """The candidates that are models."""
        return [candidate for candidate in self.candidates if candidate.has_drafter]


#: (domain, temperature) -> what the verifier wrote.
Texts = dict[tuple[str, float], list[VerifierText]]
#: (domain, candidate, temperature) -> how far the candidate is right.
Scores = dict[tuple[str, str, float], list[ScoredText]]


@dataclass
class Findings:
    """What is known so far."""

    texts: Texts = field(default_factory=dict)
    scores: Scores = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def run(task: Task, log: IO[Any], environment: Mapping[str, str], progress: Progress) -> Evaluation:
    """Evaluate. Starts an engine and drafters, and ends them again whatever happens.

    Args:
        task: what to evaluate.
        log: where the processes' words go.
        environment: of the drafters.
        progress: who is told how far it is.

    Raises:
        EvaluationError: something in the task cannot work; the text says what to do.
        RuntimeError: the engine or a drafter does not start, or stops.
    """
    began = time.monotonic()
    effort, config = task.effort, task.config
    findings = Findings(notes=list(task.remarks))
    drafts = [
        DraftToServe(one.name, one.folder, one.settings)
        for one in task.models
        if one.folder is not None and one.settings is not None
    ]
    progress.stage("starting the verifier and the drafters")
    with DrafterProcesses(drafts, task.verifier, log, environment) as drafters:
        # They take seconds to import and belong to the measurement only.
        from cluster.evaluation.calibrate import learn_costs
        from cluster.evaluation.measure import measure
        from deployments.evaluation.rig import Rig
        from deployments.verifier.offline import OfflineVerifier

        changed: dict[str, Any] = {"enforce_eager": True} if effort.eager else {}
        verifier = OfflineVerifier(config.verifier, task.verifier, _plan(task), **changed)
        try:
            progress.step(0.8, "connecting")
            peers = drafters.wait()
            drafters.admit(verifier.public_key)
            rig = Rig(verifier)
            rig.connect(peers)
            _write(task, rig, _tokenise(task, verifier.llm.get_tokenizer()), findings, progress)
            _score(task, findings, progress)
            yardsticks = Yardsticks()
            costs = learn_costs(task, rig, findings.texts, progress, yardsticks)
            speeds = speeds_of(task, findings.scores, costs)
            deadline = None if effort.budget_s is None else began + effort.budget_s
            measurements, remarks = measure(
                task, rig, findings, costs, speeds, deadline, progress, yardsticks
            )
            plain = plain_rates(task, verifier, findings.texts) if task.methods else {}
        finally:
            verifier.close()
    # Without the drafters, which would share the machine with engines that do not need them.
    own_methods = measure_methods(task, findings.texts, plain, progress) if task.methods else []
    findings.notes += remarks
    infos = [_info(candidate) for candidate in task.candidates]
    configured = {domain: settings.draft for domain, settings in config.domains.items()}
    choice = choose(speeds, infos, configured, config.generalist)
    changed_keys = changes(config, choice, task.candidates)
    return Evaluation(
        specfleet=version("specfleet"),
        configuration=task.file,
        verifier=config.verifier.name,
        quick=task.quick,
        seconds=round(time.monotonic() - began, 1),
        machine=_machine(config),
        temperatures=list(effort.temperatures),
        batches=list(effort.batches),
        lengths=list(effort.predicted_lengths),
        domains=[_domain(task, findings.texts, name) for name in config.domains],
        candidates=infos,
        acceptance=acceptance_of(task, findings.scores),
        costs=costs_of(task, costs),
        speeds=speeds,
        measurements=measurements,
        own_methods=own_methods,
        advice=Advice(
            summary=choice.summary,
            domains=choice.domains,
            generalist=choice.generalist,
            max_draft_tokens=choice.max_draft_tokens,
            changes=as_yaml(changed_keys),
            configuration=as_yaml(whole(config, changed_keys)),
        ),
        notes=findings.notes,
    )


def _plan(task: Task) -> ProposerPlan:
    config = task.config
    width = max(task.effort.longest, 1)
    names = [candidate.name for candidate in task.models]
    return ProposerPlan(
        verifier="evaluation",
        generalist=config.generalist,
        domains={domain: settings.draft for domain, settings in config.domains.items()},
        drafts=names,
        speculation=config.speculation.model_copy(update={"max_draft_tokens": width}),
        link=LinkSettings(
            **{
                **config.link.model_dump(),
                "step_deadline_ms": _PATIENCE_MS,
                "peer_silence_s": max(config.link.peer_silence_s, 10.0),
            }
        ),
    )


def _tokenise(task: Task, tokenizer: Any) -> dict[str, list[list[int]]]:
    """Prompts as token ids, as a chat's first message where the model knows chats."""
    config, effort = task.config, task.effort
    answers = max(effort.max_tokens, effort.calibration_tokens)
    room = (config.verifier.max_model_len or 1 << 30) - answers - effort.longest - 1
    found: dict[str, list[list[int]]] = {}
    for domain, given in task.prompts.items():
        chosen = spread(given.prompts, max(effort.prompts, effort.samples))
        ids = [_ids(tokenizer, prompt) for prompt in chosen]
        fitting = [one for one in ids if len(one) <= room]
        if not fitting:
            raise EvaluationError(
                f"every prompt of domain {domain!r} is longer than verifier.max_model_len leaves room for "
                f"({room} tokens): give shorter ones, or raise max_model_len"
            )
        found[domain] = fitting
    return found


def _ids(tokenizer: Any, prompt: str) -> list[int]:
    if getattr(tokenizer, "chat_template", None):
        text = tokenizer.apply_chat_template(
            [{"role": "user", "content": prompt}], add_generation_prompt=True, tokenize=False
        )
        return list(tokenizer.encode(text, add_special_tokens=False))
    return list(tokenizer.encode(prompt))


def _write(
    task: Task, rig: Rig, prompts: Mapping[str, list[list[int]]], findings: Findings, progress: Progress
) -> None:
    """Let the verifier write its answers, all domains in one batch."""
    effort = task.effort
    progress.stage("the verifier writes answers")
    for number, temperature in enumerate(effort.temperatures):
        count = effort.prompts if temperature == 0 else effort.samples
        chosen = [(domain, ids) for domain, all_ids in prompts.items() for ids in all_ids[:count]]
        written = rig.write([ids for _, ids in chosen], effort.max_tokens, temperature)
        for (domain, _), text in zip(chosen, written, strict=True):
            findings.texts.setdefault((domain, temperature), []).append(text)
        progress.step((number + 1) / len(effort.temperatures))
    for key, texts in findings.texts.items():
        # The first token comes with the prompt: an answer of one token has no step to speed up.
        findings.texts[key] = [text for text in texts if len(text.answer) > 1]
        if not findings.texts[key]:
            raise EvaluationError(
                f"the verifier answers every prompt of domain {key[0]!r} with a single token: "
                "there is nothing to speed up; give other prompts"
            )


def _score(task: Task, findings: Findings, progress: Progress) -> None:
    progress.stage("the candidates read them")
    for number, candidate in enumerate(task.candidates):
        score = _scorer(task, candidate)
        for (domain, temperature), texts in findings.texts.items():
            findings.scores[domain, candidate.name, temperature] = score(texts)
        progress.step((number + 1) / len(task.candidates), candidate.name)


def _scorer(task: Task, candidate: Candidate) -> Callable[[Sequence[VerifierText]], list[ScoredText]]:
    longest = max(task.effort.predicted_lengths)
    if candidate.folder is None or candidate.settings is None:
        make: Callable[[], Source] = LOOKUPS[candidate.source]
        return lambda texts: score_source(make, texts, longest)
    # The very engine that serves it, so that what is scored is what is served.
    engine = build_engine(
        candidate.settings,
        draft=candidate.folder,
        verifier=task.verifier,
        verifier_max_model_len=task.config.verifier.max_model_len,
    )
    return lambda texts: score_draft(engine, texts, longest)


def _info(candidate: Candidate) -> CandidateInfo:
    return CandidateInfo(
        name=candidate.name,
        kind=candidate.kind,
        source=candidate.source,
        model=candidate.settings.model if candidate.settings is not None else None,
        configured=candidate.configured,
        served=candidate.has_drafter,
    )


def _domain(task: Task, texts: Texts, name: str) -> DomainInfo:
    greedy = texts.get((name, 0.0), [])
    warm = [len(found) for (domain, temperature), found in texts.items() if domain == name and temperature]
    return DomainInfo(
        name=name,
        draft=task.config.domains[name].draft,
        prompts=len(greedy),
        samples=max(warm, default=0),
        tokens=sum(len(text.answer) for text in greedy),
        origin=task.prompts[name].origin,
        own=task.prompts[name].own,
    )


def _machine(config: FleetConfig) -> str:
    model = "unknown processor"
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return f"{len(os.sched_getaffinity(0))} cores, {model}, verifier on {config.verifier.device}"
