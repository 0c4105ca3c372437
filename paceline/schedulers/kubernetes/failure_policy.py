"""What Kubernetes does with the exit codes of a pod: rules made from ``exit_policy.AFTER``."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.json_types import Json, JsonObject
from paceline.launch.supervision.exit_policy import AFTER, After

#: Nothing follows a code that means *done*: there is no action that makes such a pod a success. In the order
#: in which a failed pod is held against them.
_ACTIONS: Mapping[str, tuple[After, ...]] = {
    "FailJob": (After.FAIL, After.DONE),
    "Ignore": (After.RESUME,),
    "Count": (After.COUNT,),
}
#: The pod was evicted, or its node has gone: not the run's fault.
_DISRUPTED: JsonObject = {
    "action": "Ignore",
    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
}


def pod_failure_policy(container: str) -> JsonObject:
    """Return the policy of a Job whose pods run ``container``, and are never restarted in place.

    A code that no rule names counts.
    """
    rules: list[Json] = []
    for action, meanings in _ACTIONS.items():
        values = sorted(int(code) for code, follows in AFTER.items() if follows in meanings and code)
        condition: JsonObject = {"containerName": container, "operator": "In", "values": values}
        rules.append({"action": action, "onExitCodes": condition})
        if action == "Ignore":
            rules.append(_DISRUPTED)
    return {"rules": rules}


def gang_failure_policy(max_restarts: int, job: str) -> JsonObject:
    """Return the policy of a JobSet: all its pods start again, ``max_restarts`` times.

    A code that fails a Job ends the JobSet, and so does its deadline. ``job``: the trainers'.
    """
    refused: JsonObject = {
        "name": "endedForGood",
        "action": "FailJobSet",
        "onJobFailureReasons": ["PodFailurePolicy", "DeadlineExceeded"],
        "targetReplicatedJobs": [job],
    }
    return {"maxRestarts": max_restarts, "rules": [refused]}
