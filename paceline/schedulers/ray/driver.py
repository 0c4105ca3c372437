"""``python -m paceline.schedulers.ray.driver TASK``: what ``ray job submit`` runs.

It reserves the nodes, places an actor on each, starts their launchers, and starts them again as
``exit_codes.AFTER`` says. The job ends with the code of the node that failed by itself.
"""

from __future__ import annotations

import secrets
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from paceline.core.errors import PacelineError
from paceline.core.json_types import parse_json
from paceline.core.rundir import RunDir
from paceline.launch.environment.guide_variables import current
from paceline.launch.launch_record import FILES, JOB, SCHEDULER
from paceline.launch.program import handling_signals, program
from paceline.launch.run_secret import VALUE as STORE_SECRET
from paceline.schedulers import codes
from paceline.schedulers.ray.attempts import Stop, repeat, report, run_to_end
from paceline.schedulers.ray.node import NodeLauncher
from paceline.schedulers.ray.task import RayTask

_WAIT_SECONDS = 0.5
_LOST = 137  # a node that goes away takes its launcher with it
#: a wait and a stop at the same time
_THREADS = 4


class Actors:
    """One actor on each bundle of the placement group: the ``Nodes`` of an attempt."""

    def __init__(self, task: RayTask, group: PlacementGroup, secret: str) -> None:
        self._task, self._secret = task, secret
        actor = ray.remote(NodeLauncher)
        self._actors = [
            actor.options(
                num_cpus=task.cpus,
                num_gpus=task.gpus,
                max_concurrency=_THREADS,
                scheduling_strategy=PlacementGroupSchedulingStrategy(
                    group, placement_group_bundle_index=node, placement_group_capture_child_tasks=True
                ),
            ).remote(task)
            for node in range(task.nodes)
        ]

    def start(self) -> None:
        """Start the launchers, which meet at the first node."""
        task = self._task
        address, free = ray.get(self._actors[0].meeting_place.remote())
        signed = {STORE_SECRET: self._secret} if self._secret else {}
        record = {SCHEDULER: "ray", JOB: f"{submission(current())}@{task.address}", FILES: task.files}
        meets = ("--master-addr", address, "--master-port", str(task.port or free))
        ray.get(
            [
                actor.start.remote((*task.arguments, "--node-rank", str(node), *meets), {**signed, **record})
                for node, actor in enumerate(self._actors)
            ]
        )

    def wait(self, running: Sequence[int]) -> list[int | None]:
        """Wait a moment; return the exit codes of those that have ended."""
        answers = [self._actors[node].wait.remote(_WAIT_SECONDS) for node in running]
        return [self._answer(node, answer) for node, answer in zip(running, answers, strict=True)]

    def stop(self, running: Sequence[int]) -> None:
        """Tell the launchers to save and leave."""
        for node in running:
            self._actors[node].stop.remote()

    def kill(self, running: Sequence[int]) -> None:
        """Kill the launchers."""
        for node in running:
            self._actors[node].kill.remote()

    def close(self) -> None:
        """Give the bundles free."""
        for actor in self._actors:
            ray.kill(actor)

    def _answer(self, node: int, answer: ray.ObjectRef) -> int | None:
        try:
            code: int | None = ray.get(answer)
        except RayActorError as error:
            report(f"node {node} is lost: {error}")
            return _LOST
        return code


def submission(environ: Mapping[str, str]) -> str:
    """Return the name under which Ray knows this job; empty where it was not submitted."""
    match parse_json(environ.get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}").encode()):
        case {"metadata": {"job_submission_id": str(name)}}:
            return name
        case _:
            return ""


def reserved(task: RayTask) -> PlacementGroup:
    """Return one bundle on each of as many nodes as the job has. Raises PacelineError if they stay taken."""
    bundle = {"CPU": task.cpus, **({"GPU": task.gpus} if task.gpus else {})}
    group = placement_group([bundle] * task.nodes, strategy="STRICT_SPREAD")
    try:
        ray.get(group.ready(), timeout=task.placement_timeout)
    except GetTimeoutError:
        wanted = f"{task.nodes} nodes with {bundle} each"
        raise PacelineError(
            codes.SCHEDULERS_PLACEMENT("ray", f"{wanted}; the cluster has {ray.cluster_resources()}")
        ) from None
    return group


@program
def main(argv: Sequence[str]) -> int:
    """Run the job of a task's file; return its exit code."""
    task = RayTask.read(Path(argv[0]))
    ray.init()
    stop = Stop()

    def request(number: int, frame: FrameType | None) -> None:
        stop.requested = True

    secret = secrets.token_hex(32) if task.signs else ""
    with handling_signals({signal.SIGTERM: request, signal.SIGINT: request}):
        group = reserved(task)

        def attempt() -> int:
            actors = Actors(task, group, secret)
            try:
                code = run_to_end(actors, task.nodes, task.grace, stop)
            finally:
                actors.close()
            # `paceline stop`, which the launchers have seen there too
            stop.requested = stop.requested or RunDir.at(task.run).stop_request.is_file()
            return code

        return repeat(attempt, task.max_restarts, stop)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
