"""What the fleet tells Ray Serve, and what it makes of Serve's answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ray.serve.schema import ServeDeploySchema

from cluster.config import FleetConfig
from cluster.loader import load_config
from cluster.serving import DeploymentState, FleetProgress, api_url, clear_cause, deploy_schema
from tests.cluster.configs import small, write


def test_serve_takes_the_configuration_unchanged(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, small())).config
    schema = deploy_schema(config)
    application = schema.applications[0]
    assert (application.name, application.import_path) == ("specfleet", "cluster.app:build")
    assert FleetConfig.model_validate(application.args) == config


def test_a_written_serve_file_is_accepted_by_serve_and_by_us(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, small())).config
    text = yaml.safe_dump(deploy_schema(config).model_dump(mode="json", exclude_unset=True))
    path = write(tmp_path, text, "serve.yaml")
    ServeDeploySchema.model_validate(yaml.safe_load(path.read_text()))
    assert load_config(path).config == config


def test_serve_listens_where_the_configuration_says() -> None:
    config = FleetConfig.model_validate(
        {**small(), "api": {"host": "0.0.0.0", "port": 8123, "keep_alive_s": 7}}
    )
    options = deploy_schema(config).http_options
    assert (options.host, options.port, options.keep_alive_timeout_s) == ("0.0.0.0", 8123, 7)
    assert api_url(config) == "http://127.0.0.1:8123"


NESTED = """The deployment failed to start 1 times in a row. Error:
Traceback (most recent call last):
  File "replica.py", line 1867, in initialize
    await self._user_callable_wrapper.initialize_callable()
ray.exceptions.RayTaskError(IncompatibleDraft): ray::ServeReplica.initialize()
  File "replica.py", line 60, in __init__
deployments.models.errors.IncompatibleDraft: draft /d has another tokenizer than verifier /v
"""
BARE = """RuntimeError: Traceback (most recent call last):
  File "server.py", line 76, in __init__
    assert isinstance(loading, ModelLoadingConfig)
AssertionError
"""


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        (NESTED, "draft /d has another tokenizer than verifier /v"),
        (BARE, 'AssertionError: File "server.py", line 76, in __init__'),
        ("ValueError: seven\nRuntimeError: wrapped", "ValueError: seven"),
        ("RuntimeError: only this", "RuntimeError: only this"),
        ("torch.OutOfMemoryError: no room", "OutOfMemoryError: no room"),
        ("Deploying: 0 of 1 replicas are ready", None),
        ("", None),
    ],
)
def test_the_telling_sentence_of_a_traceback(message: str, cause: str | None) -> None:
    assert clear_cause(message) == cause


def deployment(*, healthy: bool = False, message: str = "") -> DeploymentState:
    return DeploymentState("draft-code", healthy=healthy, message=message)


def test_a_replica_that_cannot_start_fails_the_start_at_once() -> None:
    progress = FleetProgress("DEPLOYING", "", (deployment(message=NESTED),))
    assert progress.failure == "draft-code: draft /d has another tokenizer than verifier /v"


def test_an_old_message_of_a_healthy_deployment_is_no_failure() -> None:
    assert FleetProgress("DEPLOYING", "", (deployment(healthy=True, message=NESTED),)).failure is None


def test_starting_is_no_failure() -> None:
    progress = FleetProgress("DEPLOYING", "", (deployment(message="0 of 1 replicas are ready"),))
    assert progress.failure is None
    assert not progress.ready


def test_an_application_that_cannot_be_built() -> None:
    message = (
        "Deploying app failed:\nTraceback ...\ncluster.problems.ConfigError: fleet: generalist: no draft"
    )
    assert FleetProgress("DEPLOY_FAILED", message).failure == "fleet: generalist: no draft"
    assert FleetProgress("DEPLOY_FAILED", "").failure == "DEPLOY_FAILED"


def test_running_is_ready() -> None:
    assert FleetProgress("RUNNING", "", (deployment(healthy=True),)).ready
