"""The command `specfleet evaluate`."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from cluster.evaluation.effort import Effort
    from cluster.evaluation.result import Evaluation
    from cluster.loader import LoadedConfig

err = Console(stderr=True)


def evaluate(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The fleet's YAML file.")],
    quick: Annotated[
        bool, typer.Option("--quick", help="Few prompts and no compiled code: minutes on two cores.")
    ] = False,
    prompts: Annotated[
        list[str] | None,
        typer.Option(
            metavar="DOMAIN=FILE.jsonl",
            help='Your own prompts of a domain, {"prompt": "..."} on each line. May be repeated. '
            "Default: the domain's examples in the configuration.",
        ),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SOURCE",
            help="A further candidate: a Hugging Face id, a folder, layers:N (the verifier's own first "
            "layers), ngram or suffix. Models may end in ,quantise=none or ,quantise=int8. May be repeated.",
        ),
    ] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=METHOD",
            help="One of vLLM's own ways to propose, run in an engine of its own: ngram, medusa:FOLDER, "
            "eagle:FOLDER, ... with ,k=N for N tokens a step. May be repeated.",
        ),
    ] = None,
    extras: Annotated[
        bool,
        typer.Option(help="Also score the verifier's first layers, n-grams and suffixes."),
    ] = True,
    k: Annotated[
        str | None, typer.Option("--k", metavar="N,N", help="Proposal lengths to measure, e.g. 2,4.")
    ] = None,
    batch: Annotated[str | None, typer.Option(metavar="N,N", help="Batch sizes, e.g. 1,4,16.")] = None,
    temperature: Annotated[
        str | None, typer.Option(metavar="T,T", help="Sampling temperatures, e.g. 0,0.8.")
    ] = None,
    json_file: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write everything as JSON.")
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write a report with charts, one file, for a browser.")
    ] = None,
    yaml: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the configuration that follows.")
    ] = None,
) -> None:
    """Say which drafts are worth it: for which domain, how many tokens, up to which batch size."""
    from cluster.cli import load_or_exit
    from cluster.evaluation.candidates import EvaluationError
    from cluster.prepare import PrepareError

    for path in (json_file, html, yaml):
        if path is not None and not path.absolute().parent.is_dir():
            _fail(f"there is no folder {path.absolute().parent} to write {path.name} to: make it first")
    loaded = load_or_exit(file)
    try:
        effort = _effort(loaded, quick=quick, k=k, batch=batch, temperature=temperature)
        result = _run(loaded, effort, quick, prompts or [], draft or [], method or [], extras)
    except (EvaluationError, PrepareError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        err.print("stopped; nothing was left running")
        raise typer.Exit(130) from None
    _show(result, json_file, html, yaml)


def _effort(
    loaded: LoadedConfig, *, quick: bool, k: str | None, batch: str | None, temperature: str | None
) -> Effort:
    from dataclasses import replace

    from cluster.evaluation.candidates import EvaluationError
    from cluster.evaluation.effort import FULL, QUICK

    config = loaded.config
    effort = (QUICK if quick else FULL).fitted(
        max_draft_tokens=config.speculation.max_draft_tokens, max_num_seqs=config.verifier.max_num_seqs
    )
    changes: dict[str, Any] = {}
    if k is not None:
        changes["lengths"] = tuple(sorted(set(_numbers("--k", k, int, 1, 16))))
    if batch is not None:
        batches = tuple(sorted(set(_numbers("--batch", batch, int, 1, 1024))))
        if batches[-1] > config.verifier.max_num_seqs:
            raise EvaluationError(
                f"--batch {batches[-1]} does not fit: verifier.max_num_seqs is "
                f"{config.verifier.max_num_seqs}; ask for less, or raise it in the configuration"
            )
        changes["batches"] = batches
    if temperature is not None:
        changes["temperatures"] = tuple(sorted(set(_numbers("--temperature", temperature, float, 0.0, 2.0))))
    return replace(effort, **changes)


def _numbers(option: str, text: str, kind: type, low: float, high: float) -> list[Any]:
    from cluster.evaluation.candidates import EvaluationError

    try:
        numbers = [kind(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not all(low <= number <= high for number in numbers):
        raise EvaluationError(f"{option} {text}: write numbers from {low:g} to {high:g} with commas between")
    return numbers


def _run(
    loaded: LoadedConfig,
    effort: Effort,
    quick: bool,
    prompts: list[str],
    drafts: list[str],
    own: list[str],
    extras: bool,
) -> Evaluation:
    from cluster.evaluation.candidates import EvaluationError, find_candidates
    from cluster.evaluation.own import find_methods
    from cluster.evaluation.progress import TerminalProgress
    from cluster.evaluation.prompts import read_prompts
    from cluster.evaluation.workspace import workspace
    from cluster.prepare import prepare
    from deployments.models import resolve_model

    config = loaded.config
    if config.verifier.proposer is not None:
        raise EvaluationError(
            f"vLLM's own {config.verifier.proposer.method} proposes in this fleet, and evaluate compares "
            "drafts: give it a configuration with drafts (ngram and suffix are scored beside them); "
            "`specfleet status` shows what a running fleet's own method gets accepted"
        )
    asked = read_prompts(config, prompts)
    base = Path(config.base_folder) if config.base_folder else None
    prepare(config, lambda text: err.print(text, highlight=False))
    verifier = resolve_model(config.verifier.model, base=base)
    candidates, remarks = find_candidates(config, verifier, drafts, defaults=extras)
    methods = find_methods(config, verifier, own, effort.longest)
    if methods and 0.0 not in effort.temperatures:
        raise EvaluationError("--method is measured greedily: have 0 among --temperature")
    with workspace(config) as place:
        progress = TerminalProgress(place.terminal, budget_s=effort.budget_s)
        try:
            from cluster.evaluation.run import Task, run

            task = Task(
                config,
                str(loaded.path),
                verifier,
                candidates,
                asked,
                effort,
                quick,
                [*_about(quick), *remarks],
                methods,
            )
            return run(task, place.log, place.environment, progress)
        except EvaluationError:
            raise
        except Exception as error:  # engines fail in many ways, each with a type of its own
            traceback.print_exc(file=place.log)
            raise EvaluationError(
                f"{error or type(error).__name__}\nWhat the verifier and the drafters said is in "
                f"{place.log.name}. `specfleet check {loaded.path}` says what can be told without starting "
                "anything; another fleet or engine on this machine may hold the memory that is missing"
            ) from error
        finally:
            progress.close()


def _about(quick: bool) -> list[str]:
    if not quick:
        return []
    return [
        "Quick: few prompts and short answers, so acceptance is known to a tenth or so, and the verifier "
        "runs without compiled code (verifier.enforce_eager). Leave --quick out before much depends on it."
    ]


def _show(result: Evaluation, json_file: Path | None, html: Path | None, yaml: Path | None) -> None:
    from cluster.evaluation import terminal
    from cluster.files import write_whole

    Console().print(terminal.render(result))
    if json_file is not None:
        write_whole(json_file, result.model_dump_json(indent=1) + "\n")
        err.print(f"everything as JSON: {json_file}", highlight=False)
    if html is not None:
        from cluster.evaluation.html import page

        write_whole(html, page(result))
        err.print(f"the report: {html}", highlight=False)
    if yaml is not None:
        write_whole(yaml, result.advice.configuration)
        err.print(f"the configuration that follows: {yaml}", highlight=False)


def _fail(text: str) -> NoReturn:
    err.print(f"[red]error[/] {escape(text)}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)
