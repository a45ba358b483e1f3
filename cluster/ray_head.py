"""Starting the Ray head of a local fleet.

Ray's own ``ray start`` would do, but it listens on every network interface without asking for a password,
takes seconds to start a dashboard process that nobody asked for, and holds another 120 MB for it.
Here the head listens on the loopback address only. This is the one place that uses Ray's private classes to
start it, for exactly the version of Ray that the project pins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

#: With this set, Ray uses the loopback address instead of the machine's first network interface.
LOOPBACK_ONLY = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class HeadOptions:
    """How large a local Ray head is.

    Attributes:
        folder: its temporary folder, short enough for the sockets in it.
        cpus: CPUs that Ray may hand out.
        gpus: GPUs that Ray may hand out.
        object_store_bytes: shared memory for objects; a fleet passes only small ones.
    """

    folder: str
    cpus: int
    gpus: int
    object_store_bytes: int = 200 * 10**6


def start_head(options: HeadOptions) -> dict[str, Any]:
    """Starts gcs_server and raylet and waits until both answer.

    Returns:
        ``address`` of the head and ``pids`` of its processes.
    """
    from ray._private import ray_constants
    from ray._private.node import Node
    from ray._private.parameter import RayParams

    class LoopbackHead(Node):
        """A head node without a dashboard process."""

        def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
            self._webui_url = ""
            # Whoever connects asks for this address and would wait for it.
            self.get_gcs_client().internal_kv_put(
                b"webui:url", b"", True, ray_constants.KV_NAMESPACE_DASHBOARD
            )

    parameters = RayParams(
        node_ip_address=LOOPBACK,
        num_cpus=options.cpus,
        num_gpus=options.gpus,
        object_store_memory=options.object_store_bytes,
        temp_dir=options.folder,
        include_dashboard=False,
        include_log_monitor=False,  # type: ignore[arg-type]  # replicas log to files; nobody follows them over the network
        no_monitor=True,  # Ray's cluster autoscaler: there is one node
        dashboard_agent_listen_port=0,  # any free port: its default is taken where a second Ray runs
    )
    # spawn_reaper would end the head together with this process, which is not meant to stay.
    head = LoopbackHead(parameters, head=True, shutdown_at_exit=False, spawn_reaper=False)
    pids = [info.process.pid for infos in head.all_processes.values() for info in infos]
    return {"address": head.address, "pids": pids}
