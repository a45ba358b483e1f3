"""The command line: ``specfleet check|plan|up|down|status|demo|chat|evaluate|distill|schema``.

Modules are imported where they are needed: `specfleet --help` must not wait for Ray.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from cluster.distill import distill
from cluster.evaluation.command import evaluate
from cluster.planning.command import plan

if TYPE_CHECKING:
    from cluster.loader import LoadedConfig
    from cluster.problems import Problem

app = typer.Typer(
    name="specfleet",
    help="One large verifier, a fleet of small drafts: the verifier's own answers, sooner.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console()
err = Console(stderr=True)

ConfigFile = Annotated[Path, typer.Argument(metavar="FILE", help="The fleet's YAML file.")]
Port = Annotated[int | None, typer.Option(help="Port of the fleet's API. Default: the one that runs here.")]
SomeFile = Annotated[
    Path | None, typer.Argument(metavar="[FILE]", help="The fleet's YAML file, which names the port.")
]
Url = Annotated[str | None, typer.Option(help="Base URL of a fleet's API, e.g. of one on other machines.")]


app.command()(plan)
app.command()(evaluate)
app.command()(distill)


@app.command()
def check(file: ConfigFile) -> None:
    """Say whether a configuration is right, without starting anything."""
    loaded, problems = _load(file)
    _show(file, problems)
    if any(problem.severity == "error" for problem in problems):
        raise typer.Exit(1)
    config = loaded.config
    who = f"{len(config.drafts)} drafts ({', '.join(config.drafts)}), {len(config.domains)} domains"
    if config.verifier.proposer is not None:
        who = f"vLLM's own {config.verifier.proposer.method} proposes"
    out.print(
        f"[green]{escape(str(file))} is right[/]: verifier {escape(config.verifier.name)}, {who}",
        highlight=False,
    )


@app.command()
def schema() -> None:
    """Print every key of a configuration with its description, as a JSON schema."""
    from cluster.config import FleetConfig

    out.print_json(json.dumps(FleetConfig.model_json_schema()))


@app.command()
def up(
    file: ConfigFile,
    foreground: Annotated[
        bool, typer.Option("--foreground", help="Stay until Ctrl-C, then stop the fleet.")
    ] = False,
) -> None:
    """Start a fleet on this machine and wait until it is ready."""
    from cluster.bringup import BringUpError, bring_up, take_down
    from cluster.prepare import PrepareError, prepare
    from cluster.progress import StartProgress
    from cluster.state import Busy

    loaded, problems = _load(file)
    _show(file, problems)
    if any(problem.severity == "error" for problem in problems):
        raise typer.Exit(1)
    shown = StartProgress(out)
    try:
        prepare(loaded.config, shown.say)
        state = bring_up(loaded, shown.watch, shown.say)
    except BringUpError as error:
        _fail(f"{error}\nlogs: {error.logs}" if error.logs else str(error))
    except (PrepareError, Busy, OSError) as error:
        _fail(str(error))
    except KeyboardInterrupt:
        err.print("stopped; nothing was left running")
        raise typer.Exit(130) from None
    shown.say(f"[green]ready[/]: {state.url}/v1   stop it with: specfleet down")
    if foreground:
        _stay()
        ended = take_down(loaded.config.api.port)
        out.print(f"stopped ({ended} processes)")


@app.command()
def down(file: SomeFile = None, port: Port = None) -> None:
    """Stop a fleet on this machine: all of its processes, and nothing else."""
    from cluster.bringup import take_down
    from cluster.state import known_ports

    port = port or _port_in(file)
    if port is None:
        ports = known_ports()
        if len(ports) > 1:
            _fail(f"several fleets run here; say which: --port {' or --port '.join(map(str, ports))}")
        if not ports:
            out.print("no fleet runs here")
            return
        port = ports[0]
    try:
        ended = take_down(port)
    except RuntimeError as error:
        _fail(str(error))
    out.print(f"stopped the fleet on port {port} ({ended} processes)" if ended else "no fleet runs here")


@app.command()
def status(
    file: SomeFile = None,
    port: Port = None,
    url: Url = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
) -> None:
    """Show verifiers, drafters, acceptance and what the fleet does right now."""
    from cluster import status as view
    from cluster.api import ApiProblem, FleetApi

    try:
        data = FleetApi(_url(file, port, url)).status()
    except ApiProblem as problem:
        _fail(str(problem))
    if as_json:
        print(json.dumps(data))
    else:
        out.print(view.render(data))


@app.command()
def demo(
    file: SomeFile = None,
    port: Port = None,
    url: Url = None,
    max_tokens: Annotated[int, typer.Option(min=8, max=1024, help="Longest answer, in tokens.")] = 96,
    per_domain: Annotated[int, typer.Option(min=1, max=8, help="Prompts of each domain.")] = 3,
) -> None:
    """Send real requests of four domains, with and without speculation, and show what it gave."""
    from cluster import demo as demonstration
    from cluster.api import ApiProblem, FleetApi

    try:
        demonstration.run(FleetApi(_url(file, port, url)), out, max_tokens=max_tokens, per_domain=per_domain)
    except ApiProblem as problem:
        _fail(str(problem))


@app.command()
def chat(
    file: SomeFile = None,
    port: Port = None,
    url: Url = None,
    domain: Annotated[str | None, typer.Option(help="Treat everything as of this domain.")] = None,
    draft: Annotated[str | None, typer.Option(help="Use this draft; `none` decodes plainly.")] = None,
) -> None:
    """Talk to the model in the terminal."""
    from cluster import chat as conversation
    from cluster.api import ApiProblem, FleetApi

    try:
        conversation.run(FleetApi(_url(file, port, url)), out, domain=domain, draft=draft)
    except ApiProblem as problem:
        _fail(str(problem))


def load_or_exit(file: Path) -> LoadedConfig:
    """Reads and checks a configuration; ends the program with every problem shown when it cannot be used."""
    loaded, problems = _load(file)
    _show(file, problems)
    if any(problem.severity == "error" for problem in problems):
        raise typer.Exit(1)
    return loaded


def main() -> None:
    """Runs the command line."""
    app()


def _load(file: Path) -> tuple[LoadedConfig, list[Problem]]:
    """Reads a configuration; ends the program with every problem shown when it cannot be read."""
    from dataclasses import replace

    from cluster.checks import check_fleet, check_machine
    from cluster.loader import load_config
    from cluster.problems import ConfigError

    try:
        loaded = load_config(file)
    except ConfigError as error:
        _show(file, list(error.problems))
        raise typer.Exit(1) from None
    found = [*check_fleet(loaded.config), *check_machine(loaded.config)]
    return loaded, [replace(problem, line=loaded.line_at(problem.where)) for problem in found]


def _show(file: Path, problems: list[Problem]) -> None:
    for problem in problems:
        color = "red" if problem.severity == "error" else "yellow"
        err.print(
            f"[{color}]{problem.severity}[/] {escape(f'{file}: {problem}')}", highlight=False, soft_wrap=True
        )


def _url(file: Path | None, port: int | None, url: str | None) -> str:
    from cluster.state import known_ports, read_state

    if url is not None:
        return url.rstrip("/").removesuffix("/v1")
    port = port or _port_in(file)
    if port is None:
        ports = known_ports()
        port = ports[0] if ports else 8000
    state = read_state(port)
    return state.url if state is not None else f"http://127.0.0.1:{port}"


def _port_in(file: Path | None) -> int | None:
    """The port that a configuration names. Its other errors do not matter for a fleet that runs already."""
    from cluster.loader import load_config
    from cluster.problems import ConfigError

    if file is None:
        return None
    try:
        return load_config(file).config.api.port
    except ConfigError as error:
        _show(file, list(error.problems))
        raise typer.Exit(1) from None


def _stay() -> None:
    import signal
    import threading

    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda signum, frame: ended.set())
    out.print("running; Ctrl-C stops it")
    while not ended.wait(timeout=3600):
        pass


def _fail(text: str) -> NoReturn:
    err.print(f"[red]error[/] {escape(text)}", highlight=False, soft_wrap=True)
    raise typer.Exit(1)


if __name__ == "__main__":
    main()
