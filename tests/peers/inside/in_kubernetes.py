"""kubernetes-validate 1.37 and kubeflow-trainer-api 2.3 in their own environment: what they find wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import children
import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

#: the oldest release with ``backoffLimitPerIndex`` by default, and the newest that is known
RELEASES = ("1.29", "1.37")
MODELS = {
    "TrainJob": models.TrainerV1alpha1TrainJob,
    "TrainingRuntime": models.TrainerV1alpha1TrainingRuntime,
    "JobSet": models.JobsetV1alpha2JobSet,
}


def judge(text: str, folder: str) -> list[str]:
    """Return what is wrong with the objects of a manifest, and with the Jobs and pods inside of them."""
    return [finding for one in yaml.safe_load_all(text) for finding in _of(one)]


def _of(one: dict[str, Any]) -> Iterator[str]:
    kind = one["kind"]
    if kind in MODELS:
        # Its models drop unknown keys silently
        back = MODELS[kind].from_dict(one).to_dict()
        if back != one:
            yield f"{kind} is another when it is read"
        outer = one["spec"]
        for spec in (outer, outer.get("template", {}).get("spec", {})):
            for inner in spec.get("replicatedJobs", []):
                yield from _schema(_job(inner["template"]))
    elif kind == "PyTorchJob":
        for replica in one["spec"]["pytorchReplicaSpecs"].values():
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **replica["template"]}
            yield from _schema(pod)
    else:
        yield from _schema(one)


def _job(template: dict[str, Any]) -> dict[str, Any]:
    metadata = {"name": "job", **template.get("metadata", {})}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": template["spec"]}


def _schema(one: dict[str, Any]) -> Iterator[str]:
    for release in RELEASES:
        try:
            kubernetes_validate.validate(one, release, strict=True)
        except kubernetes_validate.ValidationError as error:
            yield f"{one['kind']} in {release}: {error}"[:500]


if __name__ == "__main__":
    children.answer(judge=judge)
