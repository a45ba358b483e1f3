"""The environment that a local fleet's processes get, and nothing of the user's that would mislead them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from cluster.config import FleetConfig
from cluster.processes import MARKER
from cluster.ray_head import LOOPBACK_ONLY
from deployments.models import ModelSourceError, in_hub_cache, locate_model

#: Unix socket paths end at 107 bytes; what Ray appends to its folder takes up to 67 of them.
MAX_FOLDER_LENGTH = 38

#: The user's settings for other Ray clusters, which would pull this one's processes over.
_FOREIGN = ("RAY_ADDRESS", "RAY_NAMESPACE", "RAY_REDIS_ADDRESS", "RAY_JOB_ID", "RAY_RAYLET_PID", "RAY_TMPDIR")


def make_folder(port: int) -> Path:
    """Makes the temporary folder of a fleet, with a path short enough for the sockets in it."""
    roots = [Path(tempfile.gettempdir()), Path("/tmp")]
    prefix = f"sf{port}-"
    for root in roots:
        if len(str(root.resolve())) + len(prefix) + 9 <= MAX_FOLDER_LENGTH:
            return Path(tempfile.mkdtemp(prefix=prefix, dir=root.resolve()))
    return Path(tempfile.mkdtemp(prefix=prefix, dir=roots[-1]))


def fleet_environment(config: FleetConfig, folder: Path, base: Mapping[str, str]) -> dict[str, str]:
    """The environment for everything that belongs to the fleet.

    Args:
        config: what will run.
        folder: the fleet's temporary folder.
        base: the environment to start from.
    """
    environment = {key: value for key, value in base.items() if key not in _FOREIGN}
    cache = Path(base.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "specfleet"
    temporary = folder / "t"
    temporary.mkdir(exist_ok=True)
    environment |= LOOPBACK_ONLY
    environment |= {
        MARKER: str(folder),
        # Sockets and temporary files of vLLM and others go away with the folder, whatever ends them.
        "TMPDIR": str(temporary),
        "VLLM_RPC_BASE_PATH": str(temporary),
        # Except compiled kernels: without them the next start compiles again.
        "TORCHINDUCTOR_CACHE_DIR": base.get("TORCHINDUCTOR_CACHE_DIR") or str(cache / "inductor"),
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's own 15 would let every ordinary process on the machine go before the answers.
        "RAY_worker_niceness": "0",
        # Serve's controller looks at everything ten times a second; on two cores that costs answers.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.25",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "DO_NOT_TRACK": "1",
        # Several large imports at once on few cores: Ray's 60 s for a new process can pass.
        "RAY_worker_register_timeout_seconds": "180",
    }
    if _is_local(config):
        # Otherwise each process asks the hub about files it already has, and waits where there is no network.
        environment |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return environment


def _is_local(config: FleetConfig) -> bool:
    base = Path(config.base_folder) if config.base_folder else None
    try:
        places = [locate_model(source, base=base) for source in config.model_sources()]
    except ModelSourceError:
        return False
    return all(place.kind != "hub" or in_hub_cache(place.detail) for place in places)
