"""``specfleet distill``: from a verifier and prompts to a draft."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from deployments.distillation.run import Distilled, Job
    from deployments.distillation.settings import DistillSettings

out = Console()
err = Console(stderr=True)


def distill(
    verifier: Annotated[
        str, typer.Option(help="The verifier: package:NAME, a folder, or a Hugging Face id.")
    ],
    prompts: Annotated[Path, typer.Option(help='The domain\'s prompts, JSONL: {"prompt": "..."} a line.')],
    name: Annotated[str, typer.Option(help="The draft's name.")],
    out_folder: Annotated[
        Path, typer.Option("--out", help="Folder of the draft; it appears when all is done.")
    ],
    settings: Annotated[
        Path | None, typer.Option(help="YAML file with every choice; --show-settings lists them.")
    ] = None,
    layers: Annotated[str | None, typer.Option(help="Layers of the verifier to start from: 0,1,29.")] = None,
    start_from: Annotated[str | None, typer.Option("--from", help="Go on from this draft instead.")] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens that the verifier writes for training.")] = None,
    own_prompts: Annotated[
        int | None, typer.Option(help="Prompts that the verifier makes up in addition.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="Roughly how long to train.")] = None,
    steps: Annotated[int | None, typer.Option(help="Optimiser steps, instead of minutes.")] = None,
    loss: Annotated[str | None, typer.Option(help="kl, reverse-kl, ce or mixed.")] = None,
    head_ids: Annotated[int | None, typer.Option(help="Token ids that the draft may propose.")] = None,
    hold_back: Annotated[
        float | None, typer.Option(help="Share of the prompts that is only measured on.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the order of the texts.")] = None,
    device: Annotated[str | None, typer.Option(help="Where to train: auto, cpu or cuda.")] = None,
    compare: Annotated[
        list[str] | None, typer.Option(help="Another draft to measure on the same prompts; repeatable.")
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="Folder for texts and checkpoints. Default: in the cache folder.")
    ] = None,
    verifier_name: Annotated[str | None, typer.Option(help="The verifier's name in the model card.")] = None,
    licence: Annotated[str | None, typer.Option(help="The draft's licence in the model card.")] = None,
    replace: Annotated[bool, typer.Option("--replace", help="Replace the folder given by --out.")] = False,
    show_settings: Annotated[
        bool,
        typer.Option(
            "--show-settings",
            help="Print every choice and its meaning; do nothing else.",
            is_eager=True,
            callback=lambda wanted: _print_choices() if wanted else None,
        ),
    ] = False,
) -> None:
    """Make a draft for a domain: the verifier writes texts, a few of its layers learn to say the same.

    Ctrl-C stops it; the same command goes on where it was.
    """
    given = {
        ("hold_back",): hold_back,
        ("device",): device,
        ("texts", "tokens"): tokens,
        ("texts", "own_prompts"): own_prompts,
        ("student", "layers"): _numbers(layers),
        ("student", "start_from"): str(_folder(start_from)) if start_from else None,
        ("student", "head_ids"): head_ids,
        ("training", "minutes"): minutes,
        ("training", "steps"): steps,
        ("training", "loss"): loss,
        ("training", "seed"): seed,
    }
    choices = _settings(settings, given)
    others = {Path(source).name: _folder(source) for source in compare or []}
    folder = _folder(verifier)
    from deployments.distillation.run import Job

    job = Job(
        verifier=folder,
        verifier_name=verifier_name or _name_of(verifier),
        prompts=prompts,
        name=name,
        out=out_folder.absolute(),
        work=(work or _default_work(name)).absolute(),
        settings=choices,
        compare=others,
        replace=replace,
        **({"licence": licence} if licence else {}),
    )
    _show(_run(job))


def _run(job: Job) -> Distilled:
    """Run to the end, or end the program with what went wrong or how to go on."""
    import signal
    from types import FrameType

    from cluster.distill_progress import DistillProgress
    from deployments.distillation.errors import DistillError, Stopped
    from deployments.distillation.progress import Stop
    from deployments.distillation.run import distill as run

    stop = Stop()

    def wish(number: int, frame: FrameType | None) -> None:
        if stop.wanted:
            raise KeyboardInterrupt  # the second time, at once: what is on disk is whole at any time
        stop.wanted = True
        err.print("stopping; what is done is being kept (once more to stop at once)")

    before = {number: signal.signal(number, wish) for number in (signal.SIGINT, signal.SIGTERM)}
    go_on = f"the same command goes on from here; it finds its texts and checkpoints in {job.work}"
    progress = DistillProgress(out)
    try:
        return run(job, progress.report, stop)
    except (Stopped, KeyboardInterrupt) as error:
        progress.close()
        err.print(f"{str(error) or 'stopped'}; {go_on}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    except DistillError as error:
        progress.close()
        if not stop.wanted:
            _fail(str(error))
        # Ctrl-C ends the engine's process as well, and the error is only that.
        err.print(f"stopped; {go_on}", highlight=False, soft_wrap=True)
        raise typer.Exit(130) from None
    finally:
        progress.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _settings(file: Path | None, given: dict[tuple[str, ...], Any]) -> DistillSettings:
    """The choices of a file, overruled by the flags."""
    import yaml
    from pydantic import ValidationError

    from deployments.distillation.settings import DistillSettings

    data: Any = {}
    if file is not None:
        try:
            data = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            _fail(f"{file} cannot be read: {error}")
        if not isinstance(data, dict):
            _fail(f"{file} must hold keys and values; `specfleet distill --show-settings` lists them")
    for path, value in given.items():
        if value is not None:
            inner = data
            for key in path[:-1]:
                inner = inner.setdefault(key, {})
            inner[path[-1]] = value
    try:
        return DistillSettings.model_validate(data)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors(include_url=False)
        ]
        _fail("; ".join(problems))


def _print_choices() -> NoReturn:
    from deployments.distillation.settings import DistillSettings

    out.print_json(data=DistillSettings.model_json_schema())
    raise typer.Exit


def _numbers(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        _fail(f"--layers {text!r} is no list of layers: write numbers with commas between them, as 0,1,29")


def _folder(source: str) -> Path:
    """The folder of a model source."""
    from deployments.models import ModelSourceError, resolve_model

    try:
        return resolve_model(source)
    except ModelSourceError as error:
        _fail(str(error))


def _name_of(source: str) -> str:
    """A verifier's name for people."""
    from deployments.models import locate_model

    path = locate_model(source).path
    named = path.name.partition(".")[0] if path is not None and path.is_file() else source
    return named.partition("@")[0].rstrip("/").rsplit("/", 1)[-1]


def _default_work(name: str) -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return root / "specfleet" / "distill" / name


def _show(result: Distilled) -> None:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title="held-back prompts, greedy", title_justify="left")
    table.add_column("draft")
    for heading in ("pos. 1", "pos. 2", "pos. 3", "pos. 4", "mean of 1, 2", "mean length"):
        table.add_column(heading, justify="right")
    for name, score in result.scores.items():
        shares = [f"{100 * share:.1f} %" for share in (*score.by_position, score.first_two)]
        table.add_row(escape(name), *shares, f"{score.mean_length:.2f}")
    out.print(table)
    out.print(f"[green]written[/]: {escape(str(result.folder))}", highlight=False, soft_wrap=True)


def _fail(text: str) -> NoReturn:
    err.print(f"[red]error[/] {escape(text)}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)
