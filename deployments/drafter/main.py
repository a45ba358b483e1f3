"""One drafter as an ordinary process: `python -m deployments.drafter.main --draft FOLDER --verifier FOLDER`.

Prints one line of JSON with its address and key when it is ready, and ends on SIGTERM, SIGINT or when its
standard input closes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path


def main(arguments: Sequence[str] | None = None) -> int:
    """Run until told to stop; returns the exit status."""
    options = _parse(arguments)
    if options.cpu_cores:
        os.sched_setaffinity(0, options.cpu_cores)
    # Thread pools read it when torch is imported, so it comes first.
    os.environ["OMP_NUM_THREADS"] = str(options.threads)

    from deployments.drafter.build import build_service
    from deployments.drafter.settings import DraftSettings

    settings = DraftSettings(
        model=str(options.draft),
        device=options.device,
        threads=options.threads,
        quantise=options.quantise,
        max_sessions=options.max_sessions,
        max_context=options.max_context,
        kv_memory_mib=options.kv_memory_mib,
        idle_session_s=options.idle_session_s,
    )
    try:
        service = build_service(
            settings, draft=options.draft, verifier=options.verifier, bind_host=options.host
        )
    except (ValueError, RuntimeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    service.admit(options.admit)
    service.start()
    service.wait_ready()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    ready = {"address": service.address, "public_key": service.public_key, "pid": os.getpid()}
    print(json.dumps(ready), flush=True)
    if not options.ignore_stdin:
        threading.Thread(target=_follow_stdin, args=(service, stop), daemon=True).start()
    status = 0
    while not stop.wait(1.0):
        try:
            service.check_health()
        except RuntimeError as error:
            print(f"error: {error}", file=sys.stderr)
            status = 1
            break
    service.stop()
    return status


def _follow_stdin(service: object, stop: threading.Event) -> None:
    """Each line is a JSON list of public keys to admit; the end of the input ends the process."""
    from deployments.drafter.service import DrafterService

    assert isinstance(service, DrafterService)
    for line in sys.stdin:
        try:
            keys = json.loads(line)
            service.admit([str(key) for key in keys])
        except (ValueError, TypeError) as error:
            print(f"ignored a line of input: {error}", file=sys.stderr)
    stop.set()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deployments.drafter.main", description=__doc__)
    parser.add_argument("--draft", type=Path, required=True, help="draft folder")
    parser.add_argument("--verifier", type=Path, required=True, help="the verifier's checkpoint folder")
    parser.add_argument("--host", default="127.0.0.1", help="IP address to listen on")
    parser.add_argument(
        "--admit", action="append", default=[], help="public key of a verifier; may be repeated"
    )
    parser.add_argument("--device", default="auto", choices=["auto", "cpu", "cuda"])
    parser.add_argument("--quantise", default="int8", choices=["none", "int8"])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cpu-cores", type=int, nargs="*", default=None, help="cores to pin the process to")
    parser.add_argument("--max-sessions", type=int, default=64)
    parser.add_argument("--max-context", type=int, default=None)
    parser.add_argument("--kv-memory-mib", type=int, default=None)
    parser.add_argument("--idle-session-s", type=float, default=300.0)
    parser.add_argument("--ignore-stdin", action="store_true", help="keep running when standard input closes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
