"""The process that starts a fleet (``python -m cluster.starter``): a Ray head, Serve on it, the application.

It is apart from the command that the user runs, for two reasons. Ray's core installs signal handlers that
abort the process on the spot, and a command that is interrupted has to clear away what it started. It has a
session of its own, so that Ctrl-C in a terminal reaches neither it nor the head that it leaves behind.

Standard input: `StarterOptions` as JSON. Standard output: one line of JSON for each thing that happens.
"""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from cluster.config import FleetConfig
from cluster.ray_head import HeadOptions, start_head
from cluster.serving import connected, deploy

POLL_S = 1.0


@dataclass(frozen=True)
class StarterOptions:
    """What to start.

    Attributes:
        head: the Ray head.
        config: the fleet's configuration as plain data.
    """

    head: HeadOptions
    config: dict[str, Any]

    def to_json(self) -> str:
        """As JSON for the starter's standard input."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> StarterOptions:
        """What `to_json` wrote."""
        data = json.loads(text)
        return cls(HeadOptions(**data["head"]), data["config"])


def start(options: StarterOptions) -> None:
    """Starts everything and tells how it goes until the fleet is ready."""
    config = FleetConfig.model_validate(options.config)
    head = start_head(options.head)
    tell("head", head)
    with connected(head["address"]):
        look = deploy(config)
        while True:
            now = look()
            tell("progress", now.to_json())
            if now.ready:
                return
            time.sleep(POLL_S)


def tell(event: str, data: Any) -> None:
    """Writes one event to standard output."""
    print(json.dumps([event, data]), flush=True)


def main() -> None:
    """Runs with options from standard input."""
    try:
        start(StarterOptions.from_json(sys.stdin.read()))
    except Exception as error:  # whatever it is, the one who waits for us has to hear of it
        tell("error", f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    # No interpreter shutdown: Ray's exit handlers would wait for processes that are meant to stay.
    os._exit(0)


if __name__ == "__main__":
    main()
