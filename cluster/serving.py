"""Talking to Ray Serve on a fleet's own Ray head: deploy by configuration, and watch."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from cluster.config import FleetConfig
from cluster.loader import IMPORT_PATH
from cluster.state import reachable

if TYPE_CHECKING:
    from ray.serve.schema import ServeDeploySchema

#: The last line of a traceback: a dotted name that ends like an exception's, and its text.
_CAUSE = re.compile(
    r"^(?:[\w.]*\.)?(\w*(?:Error|Exception|Timeout|IncompatibleDraft))(?:\([\w.]*\))?(?:: (.+))?$"
)
#: Exceptions that only wrap another one; what they wrap is the news.
_WRAPPERS = frozenset({"RuntimeError", "RayTaskError", "ActorDiedError", "RayActorError"})
#: Our own, whose texts say everything.
_OURS = frozenset({"IncompatibleDraft", "ModelSourceError", "ConfigError", "DraftError"})


@dataclass(frozen=True, slots=True)
class DeploymentState:
    """How far one deployment is.

    Attributes:
        name: the deployment.
        healthy: whether Serve calls it healthy.
        message: what Serve says about it, tracebacks included.
    """

    name: str
    healthy: bool
    message: str


@dataclass(frozen=True, slots=True)
class FleetProgress:
    """How far the application is.

    Attributes:
        status: Serve's word: DEPLOYING, RUNNING, DEPLOY_FAILED...
        message: what Serve says about the application.
        deployments: each deployment, in Serve's order.
    """

    status: str
    message: str
    deployments: tuple[DeploymentState, ...] = ()

    def to_json(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> FleetProgress:
        """What `to_json` wrote."""
        data = json.loads(text)
        deployments = tuple(DeploymentState(**each) for each in data.pop("deployments"))
        return cls(**data, deployments=deployments)

    @property
    def ready(self) -> bool:
        """Whether everything runs."""
        return self.status == "RUNNING"

    @property
    def failure(self) -> str | None:
        """The first clear reason why this will not come up, in one or two lines; None while it may."""
        for deployment in self.deployments:
            cause = clear_cause(deployment.message)
            if cause is not None and not deployment.healthy:
                return f"{deployment.name}: {cause}"
        if self.status in ("DEPLOY_FAILED", "UNHEALTHY"):
            return clear_cause(self.message) or self.message.strip() or self.status
        return None


def deploy_schema(config: FleetConfig) -> ServeDeploySchema:
    """The Serve configuration that runs this fleet; the same that one would give to ``serve deploy``."""
    from ray.serve.schema import ServeDeploySchema

    return ServeDeploySchema.model_validate(
        {
            "proxy_location": "HeadOnly",
            "http_options": http_options(config),
            # One line per request would cost more than the request's own bookkeeping on a busy fleet.
            "logging_config": {"enable_access_log": False},
            "applications": [
                {
                    "name": config.name,
                    "route_prefix": "/",
                    "import_path": IMPORT_PATH,
                    "args": config.model_dump(mode="json", exclude_unset=True),
                }
            ],
        }
    )


def http_options(config: FleetConfig) -> dict[str, Any]:
    """Where and how Serve's HTTP proxy listens."""
    return {
        "host": config.api.host,
        "port": config.api.port,
        "keep_alive_timeout_s": config.api.keep_alive_s,
    }


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Connects this process to a Ray head for the time of a ``with`` block.

    Raises:
        ConnectionError: there is no Ray head at the address.
    """
    import ray

    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    ray.init(address=address, namespace="serve", logging_level=logging.ERROR, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()


def deploy(config: FleetConfig) -> Callable[[], FleetProgress]:
    """Starts Serve where it does not run yet and gives it the fleet's configuration; does not wait.

    Returns:
        A function that asks Serve how far the fleet is.
    """
    from ray.serve._private.api import serve_start

    # The public serve.start and serve.run know no configuration files, and only in those does Serve take
    # policies for a whole application.
    client = serve_start(http_options=http_options(config), proxy_location="HeadOnly")
    client.deploy_apps(deploy_schema(config))

    def look() -> FleetProgress:
        # The public serve.status() collects far more than this each time, which slows a start on few cores.
        status = client.get_serve_status(config.name)
        deployments = tuple(
            DeploymentState(each.name, each.status.value == "HEALTHY", each.message)
            for each in status.deployment_statuses
        )
        return FleetProgress(status.app_status.status.value, status.app_status.message, deployments)

    return look


def clear_cause(message: str) -> str | None:
    """Finds the sentence in a traceback that says what is wrong; None when the text holds no exception."""
    lines = [line.strip() for line in message.splitlines()]
    causes = [
        (match[1], match[2], lines[max(index - 4, 0) : index])
        for index, line in enumerate(lines)
        if (match := _CAUSE.match(line)) and not (match[2] or "").startswith("Traceback")
    ]
    if not causes:
        return None
    kind, text, before = ([cause for cause in causes if cause[0] not in _WRAPPERS] or causes)[-1]
    if kind in _OURS and text:
        return str(text)
    if not text:  # a bare exception says nothing; where it was raised does
        text = next((line for line in reversed(before) if line.startswith("File ")), "no further text")
    return f"{kind}: {text}"


def api_url(config: FleetConfig) -> str:
    """Base URL of the API for clients on this machine."""
    return f"http://{reachable(config.api.host)}:{config.api.port}"
