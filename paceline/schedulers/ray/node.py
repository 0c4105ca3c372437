"""The actor on a node: it starts the node's launcher, watches it and passes a stop on."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import ray

from paceline.core.files import read_text
from paceline.launch import processes
from paceline.launch.environment.guide_variables import current
from paceline.schedulers.ray.task import UNPACKED, RayTask

_POLL_SECONDS = 0.1
#: Ray gives every actor as many threads as cores it reserved, which says nothing about ranks
_OF_RAY = ("OMP_NUM_THREADS",)


class NodeLauncher:
    """A node's launcher of Paceline."""

    def __init__(self, task: RayTask) -> None:
        self._task = task
        self._launcher: subprocess.Popen[bytes] | None = None

    def meeting_place(self) -> tuple[str, int]:
        """Return this node's address, as Ray knows it, and a port on which nobody listens."""
        address = ray.util.get_node_ip_address()
        with socket.create_server(("", 0)) as server:
            port: int = server.getsockname()[1]
        return address, port

    def start(self, arguments: Sequence[str], env: Mapping[str, str]) -> None:
        """Start the launcher with ``arguments`` and variables. Raises OSError."""
        here, task = Path.cwd(), self._task
        words = [
            f"{here}{word.removeprefix(UNPACKED)}" if word.startswith(UNPACKED) else word
            for word in arguments
        ]
        values = {name: read_text(Path(path)).strip() for name, path in task.secrets.items()}
        inherited = {name: value for name, value in current().items() if name not in _OF_RAY}
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", "paceline.cli.main", *words],
            env={**inherited, **task.env, **env, **values},
            cwd=task.folder if Path(task.folder).is_dir() else here,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            # SIGTERM, so that it saves when Ray kills the actor
            preexec_fn=processes.die_with_parent(),  # noqa: PLW1509 - one prctl call
        )

    def wait(self, seconds: float) -> int | None:
        """Return the launcher's exit code, 128 + N for a signal; None if it still runs after ``seconds``."""
        assert self._launcher is not None
        until = time.monotonic() + seconds
        while (code := self._launcher.poll()) is None and time.monotonic() < until:
            time.sleep(_POLL_SECONDS)
        return code if code is None or code >= 0 else 128 - code

    def stop(self) -> None:
        """Tell the launcher to save and leave."""
        assert self._launcher is not None
        processes.send(self._launcher.pid, signal.SIGTERM)

    def kill(self) -> None:
        """Kill the launcher and its group."""
        assert self._launcher is not None
        processes.send_group(self._launcher.pid, signal.SIGKILL)
