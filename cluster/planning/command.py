"""``specfleet plan``: reads what the user says, shows the plan."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from cluster.files import write_whole

if TYPE_CHECKING:
    from cluster.planning.assumptions import Assumptions
    from cluster.planning.scenario import Scenario, Wishes

#: Columns that the widest table needs.
_WIDTH = 100
_LOAD = "Load"
_MODELS = "Models"
_GPUS = "GPUs"
_FILES = "Assumptions and output"


def plan(
    file: Annotated[
        Path | None,
        typer.Argument(metavar="[FILE]", help="A fleet's YAML file; or use --verifier and --draft."),
    ] = None,
    verifier: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL", rich_help_panel=_MODELS, help="A config.json, a folder or a Hugging Face id."
        ),
    ] = None,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]MODEL", rich_help_panel=_MODELS, help="A draft; give it several times for more."
        ),
    ] = None,
    verifier_precision: Annotated[
        str | None,
        typer.Option(rich_help_panel=_MODELS, help="bf16, fp8, int8, int4 or fp32. Default: as stored."),
    ] = None,
    draft_precision: Annotated[
        str | None, typer.Option(rich_help_panel=_MODELS, help="The same for the drafts.")
    ] = None,
    kv_precision: Annotated[
        str | None, typer.Option(rich_help_panel=_MODELS, help="auto or fp8: the verifier's KV cache.")
    ] = None,
    model_config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODEL=CONFIG",
            rich_help_panel=_MODELS,
            help="Where the configuration of a model is: a config.json, a folder, or a model like it.",
        ),
    ] = None,
    list_models: Annotated[
        bool, typer.Option("--list-models", rich_help_panel=_MODELS, help="Models known without the network.")
    ] = False,
    gpu: Annotated[
        str | None,
        typer.Option(metavar="TYPE", rich_help_panel=_GPUS, help="The verifier's GPUs. Default: H100."),
    ] = None,
    draft_gpu: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE", rich_help_panel=_GPUS, help="The drafts' GPU. Default: as the verifier's."
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=1000, rich_help_panel=_GPUS, help="Machines. Default: 1.")
    ] = None,
    gpus_per_node: Annotated[
        int | None, typer.Option(min=1, max=72, rich_help_panel=_GPUS, help="GPUs of each. Default: 8.")
    ] = None,
    tensor_parallel: Annotated[
        int | None,
        typer.Option(
            min=1, max=72, rich_help_panel=_GPUS, help="GPUs of one verifier. Default: as few as do."
        ),
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(min=1, max=1000, rich_help_panel=_GPUS, help="Verifiers. Default: 1.")
    ] = None,
    max_num_seqs: Annotated[
        int | None,
        typer.Option(min=1, max=65536, rich_help_panel=_GPUS, help="Requests in one batch. Default: 256."),
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE=USD", rich_help_panel=_GPUS, help="Price of one GPU for an hour."),
    ] = None,
    list_gpus: Annotated[
        bool, typer.Option("--list-gpus", rich_help_panel=_GPUS, help="Known types and their figures.")
    ] = False,
    concurrency: Annotated[
        int | None, typer.Option(rich_help_panel=_LOAD, help="Requests in flight. Default: 32.")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(rich_help_panel=_LOAD, help="Tokens of a prompt. Default: 1000.")
    ] = None,
    answer_tokens: Annotated[
        int | None, typer.Option(rich_help_panel=_LOAD, help="Tokens of an answer. Default: 500.")
    ] = None,
    cached_share: Annotated[
        float | None,
        typer.Option(rich_help_panel=_LOAD, help="Share of a prompt in the prefix cache. Default: 0."),
    ] = None,
    acceptance: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[DRAFT=]RATE",
            rich_help_panel=_LOAD,
            help="Chance that a proposed token is accepted. Default: 0.6.",
        ),
    ] = None,
    mean_length: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[DRAFT=]LENGTH@K",
            rich_help_panel=_LOAD,
            help="The same as a mean acceptance length at k proposed tokens, as `specfleet status` shows it.",
        ),
    ] = None,
    share: Annotated[
        list[str] | None,
        typer.Option(metavar="DRAFT=SHARE", rich_help_panel=_LOAD, help="Share of the requests of a draft."),
    ] = None,
    max_draft_tokens: Annotated[
        int | None, typer.Option(rich_help_panel=_LOAD, help="Longest proposal. Default: 5.")
    ] = None,
    min_speed: Annotated[
        float | None,
        typer.Option(
            min=0.001,
            rich_help_panel=_LOAD,
            help="Tokens/s each request should get: how many GPUs does that take?",
        ),
    ] = None,
    assumptions: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", rich_help_panel=_FILES, help="Assumptions to use instead of the defaults."
        ),
    ] = None,
    print_assumptions: Annotated[
        bool,
        typer.Option(
            "--print-assumptions", rich_help_panel=_FILES, help="Print the assumptions as a file to edit."
        ),
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            metavar="FILE",
            rich_help_panel=_FILES,
            help="Write the plan as JSON, too; - prints it alone.",
        ),
    ] = None,
) -> None:
    """Plan a fleet from model configurations alone: what fits, how fast, what it costs, which draft pays."""
    from cluster.planning.errors import PlanError
    from cluster.planning.gpus import catalogue
    from cluster.planning.inputs import Flags, assumptions_with
    from cluster.planning.plan import as_json, make_plan
    from cluster.planning.report import render
    from cluster.planning.scenario import Wishes
    from cluster.planning.sources import known_models
    from cluster.problems import ConfigError

    flags = Flags(
        drafts=draft or [],
        acceptance=acceptance or [],
        mean_lengths=mean_length or [],
        shares=share or [],
        prices=price or [],
        models=model_config or [],
        values={
            "load.concurrency": concurrency,
            "load.prompt_tokens": prompt_tokens,
            "load.answer_tokens": answer_tokens,
            "load.cached_share": cached_share,
            "memory.kv_precision": kv_precision,
            "speculation.max_draft_tokens": max_draft_tokens,
        },
    )
    try:
        used, given = assumptions_with(flags, assumptions)
        if print_assumptions:
            from cluster.planning.assumptions import as_yaml

            print(as_yaml(used), end="")
            return
        if list_gpus:
            _list_gpus(used)
            return
        if list_models:
            print("\n".join(known_models()))
            return
        catalogue(used.gpus)  # a wrong file is named before models are looked for
        wishes = Wishes(
            verifier=verifier,
            drafts=flags.named_drafts(),
            gpu=gpu,
            draft_gpu=draft_gpu,
            nodes=nodes,
            gpus_per_node=gpus_per_node,
            parallel=tensor_parallel,
            replicas=replicas,
            verifier_precision=verifier_precision,
            draft_precision=draft_precision,
            most_rows=max_num_seqs,
        )
        made = make_plan(_scenario(file, wishes, used, given), min_speed)
    except ConfigError as error:
        for problem in error.problems:
            _say(f"{error.source}: {problem}")
        raise typer.Exit(1) from None
    except PlanError as error:
        _fail(str(error))
    if json_file is not None:
        _write(json.dumps(as_json(made), indent=2), json_file)
    if json_file != Path("-"):
        _console().print(render(made), highlight=False)
    if made.placement.problems:
        raise typer.Exit(1)


def _scenario(file: Path | None, wishes: Wishes, used: Assumptions, given: frozenset[str]) -> Scenario:
    if file is None:
        from cluster.planning.scenario import from_flags

        return from_flags(wishes, used)
    from cluster.loader import load_config
    from cluster.planning.from_file import from_file

    return from_file(load_config(file).config, wishes, used, given)


def _list_gpus(used: Assumptions) -> None:
    from cluster.planning.gpus import catalogue
    from cluster.planning.report import gpu_table

    _console().print(gpu_table(catalogue(used.gpus)), highlight=False)


def _write(text: str, path: Path) -> None:
    """Writes the whole file or nothing."""
    if path == Path("-"):
        print(text)
        return
    try:
        write_whole(path, text + "\n")
    except OSError as error:
        _fail(f"{path} cannot be written: {error.strerror or error}")


def _console() -> Console:
    # Wide enough for the tables where the output is no terminal.
    width = None if sys.stdout.isatty() else _WIDTH
    return Console(width=width)


def _say(text: str) -> None:
    Console(stderr=True).print(f"[red]error[/] {escape(text)}", highlight=False, soft_wrap=True)


def _fail(text: str) -> NoReturn:
    _say(text)
    raise typer.Exit(1)
