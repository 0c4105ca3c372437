"""Container manifests (Kubernetes and others): the command of each container, and its number of nodes.

Kubeflow's TrainJob (v2), PyTorchJob and MPIJob (v1), Job, CronJob, JobSet, Pod and what else has containers;
also services of Docker Compose and tasks of SkyPilot.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from paceline.config.import_export.folders.list_files import FolderFile
from paceline.config.import_export.folders.snippets import Snippet
from paceline.config.yaml_text.tree import Node, parse_yaml
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object, value_at

_TEMPLATE = re.compile(r"\{\{.*\}\}")
_GPUS = re.compile(r"(nvidia|amd|habana|huawei)\.(com|ai)/(gpu|gaudi|\w+)")
_FILLED = re.compile(r"\$\$|\$\(([A-Za-z_][\w.-]*)\)")
#: replicas of a Kubeflow v1 job that start a program on every node
_REPLICAS = ("pytorchReplicaSpecs", "replicaSpecs", "mpiReplicaSpecs", "xgbReplicaSpecs")
#: keys of a SkyPilot task
_TASK = {"run", "resources"}


@dataclass
class _Documents:
    """The documents of a YAML file, and the line of each path in each."""

    data: list[tuple[JsonObject, Mapping[str, int]]] = field(default_factory=list)
    problem: str = ""


def is_manifest(text: str) -> bool:
    """Whether a YAML text is of Kubernetes, Docker Compose or SkyPilot."""
    kubernetes = re.search(r"^apiVersion:", text, re.M) and re.search(r"^kind:", text, re.M)
    compose = re.search(r"^services:", text, re.M)
    task = re.search(r"^run:", text, re.M) and re.search(r"^(resources|setup|num_nodes):", text, re.M)
    return bool(kubernetes or compose or task)


def manifest_snippets(file: FolderFile) -> tuple[list[Snippet], str]:
    """Return the commands of a file's containers, and why a part of the file was not read, or empty."""
    documents = _documents(file)
    written = _config_maps(documents)
    matches: list[Snippet] = []
    for data, lines in documents.data:
        for snippet in _Manifest(file.path, data, lines, written).snippets():
            # The master and the workers of a job start the same
            if not any((each.label, each.text) == (snippet.label, snippet.text) for each in matches):
                matches.append(snippet)
    return matches, documents.problem


def _documents(file: FolderFile) -> _Documents:
    read = _Documents()
    texts, start = re.split(r"^---.*$", file.text, flags=re.M), 0
    for text in texts:
        if text.strip():
            try:
                tree: Node | None = parse_yaml("\n" * start + text.lstrip("\n") if start else text, file.path)
            except ConfigError as error:
                tree, message = None, error.diagnostics[0]
                template = "a template that is not filled in" if _TEMPLATE.search(text) else message.what
                read.problem = f"{template} ({message.where})"
            if tree is not None and isinstance(data := tree.data(), dict):
                read.data.append((data, tree.lines()))
        start += text.count("\n")
    return read


def _config_maps(documents: _Documents) -> dict[str, dict[str, tuple[str, int]]]:
    """Return the files that ConfigMaps hold: name of the map → name of the file → (text, line)."""
    maps: dict[str, dict[str, tuple[str, int]]] = {}
    for data, lines in documents.data:
        if data.get("kind") == "ConfigMap":
            held = maps.setdefault(str(value_at(data, "metadata.name")), {})
            for name, text in as_object(data.get("data")).items():
                line = lines.get(f"data.{name}", 1)
                held[name] = str(text), line + 1
    return maps


class _Manifest:
    """One document: containers at any depth, with the counts that its kind gives."""

    def __init__(
        self,
        file: str,
        data: JsonObject,
        lines: Mapping[str, int],
        maps: Mapping[str, Mapping[str, tuple[str, int]]],
    ) -> None:
        self._file, self._data, self._lines, self._maps = file, data, lines, maps

    def snippets(self) -> Iterator[Snippet]:
        if {*self._data} >= {"kind", "apiVersion"}:
            trainer = value_at(self._data, "spec.trainer")
            if isinstance(trainer, dict) and (trainer.get("command") or trainer.get("args")):
                yield self._container("spec.trainer", trainer, "spec.trainer", {})
            for path, containers, pod in _containers(self._data, ""):
                for number, container in enumerate(containers):
                    if not path.endswith("initContainers"):
                        yield self._container(f"{path}.{number}", as_object(container), path, pod)
        elif "services" in self._data:
            for name, service in as_object(self._data["services"]).items():
                yield self._service(name, as_object(service))
        elif {*self._data} & _TASK == _TASK or "run" in self._data:
            yield self._task()

    def _container(self, at: str, container: JsonObject, path: str, pod: JsonObject) -> Snippet:
        environment = {
            str(item.get("name")): str(item["value"])
            for item in map(as_object, _listed(container.get("env")))
            if isinstance(item.get("value"), (str, int, float))
        }
        words, places = list[str](), list[int]()
        for key in ("command", "args"):
            for number, word in enumerate(_listed(container.get(key))):
                words.append(_filled(str(word), environment))
                place = self._lines.get(f"{at}.{key}.{number}") or self._line(f"{at}.{key}")
                places.append(place)
        kind, counts = str(self._data.get("kind")), self._counts(path, container)
        names = (self._data.get("kind"), value_at(self._data, "metadata.name") or container.get("name"))
        return Snippet(
            self._file,
            shlex.join(words),
            words=tuple(places),
            label=" ".join(str(name) for name in names if name),
            environment={**_given(kind, counts), **environment},
            written=self._mounted(container, pod),
            counts=counts,
            folder=str(container.get("workingDir") or ""),
        )

    def _counts(self, path: str, container: JsonObject) -> dict[str, tuple[int, str, int]]:
        """Return the numbers of nodes and of processes per node that the manifest gives."""
        counts: dict[str, tuple[int, str, int]] = {}
        for ours, at in (
            ("launch.nnodes", "spec.trainer.numNodes"),
            ("launch.nproc", "spec.trainer.numProcPerNode"),
            ("launch.nproc", "spec.nprocPerNode"),
            ("launch.nproc", "spec.slotsPerWorker"),
        ):
            value = value_at(self._data, at)
            if str(value).isdecimal():
                counts[ours] = int(str(value)), at.rpartition(".")[2], self._line(at)
        counts |= self._replicas()
        indexed = value_at(self._data, "spec.completionMode") == "Indexed"
        pods = value_at(self._data, "spec.completions")
        if indexed and isinstance(pods, int):
            counts["launch.nnodes"] = pods, "completions", self._line("spec.completions")
        at = path.rpartition(".")[0] if path.endswith("containers") else path
        limits = value_at(container, "resources.limits") or value_at(container, "resources.requests")
        limits = limits or value_at(container, "resourcesPerNode.limits")
        for key, value in as_object(limits or value_at(container, "resourcesPerNode.requests")).items():
            if _GPUS.fullmatch(key) and str(value).isdecimal():
                counts.setdefault("launch.nproc", (int(str(value)), key, self._line(at)))
        return counts

    def _replicas(self) -> dict[str, tuple[int, str, int]]:
        """Return the nodes of a Kubeflow v1 job: all replicas that start the program."""
        for key in _REPLICAS:
            specs = as_object(value_at(self._data, f"spec.{key}"))
            counted = {role: as_object(spec).get("replicas", 1) for role, spec in specs.items()}
            launched = key == "mpiReplicaSpecs" and "Worker" in counted
            numbers = [
                n for role, n in counted.items() if isinstance(n, int) and not (launched and role != "Worker")
            ]
            if numbers:
                return {"launch.nnodes": (sum(numbers), "replicas", self._line(f"spec.{key}"))}
        return {}

    def _mounted(self, container: JsonObject, pod: JsonObject) -> dict[str, tuple[str, int]]:
        """Return the files of ConfigMaps by their mount paths in the container."""
        names = {
            str(volume.get("name")): str(value_at(volume, "configMap.name"))
            for volume in map(as_object, _listed(pod.get("volumes") or container.get("volumes")))
        }
        held: dict[str, tuple[str, int]] = {}
        for mount in map(as_object, _listed(container.get("volumeMounts"))):
            files = self._maps.get(names.get(str(mount.get("name")), ""), {})
            at, part = str(mount.get("mountPath", "")), str(mount.get("subPath") or "")
            for name, text in files.items():
                if not part or part == name:
                    held[at if part else f"{at.rstrip('/')}/{name}"] = text
        return held

    def _service(self, name: str, service: JsonObject) -> Snippet:
        """A service of Docker Compose."""
        given = service.get("environment")
        pairs = dict(str(item).partition("=")[::2] for item in _listed(given)) if _listed(given) else {}
        for key, value in as_object(given).items():
            pairs[key] = str(value)
        text = " ".join(
            shlex.join(map(str, part)) if isinstance(part, list) else str(part)
            for part in (service.get("entrypoint"), service.get("command"))
            if part
        ).replace("$$", "$")
        line = self._line(f"services.{name}.command")
        folder = str(service.get("working_dir") or "")
        places = tuple([line] * (text.count("\n") + 1))
        return Snippet(self._file, text, places, label=f"service {name}", environment=pairs, folder=folder)

    def _task(self) -> Snippet:
        """A task of SkyPilot: its text begins one line below its key."""
        text, first = str(self._data.get("run") or ""), self._line("run") + 1
        environment = {key: str(value) for key, value in as_object(self._data.get("envs")).items()}
        nodes, counts = self._data.get("num_nodes", 1), dict[str, tuple[int, str, int]]()
        if isinstance(nodes, int):
            counts["launch.nnodes"] = nodes, "num_nodes", self._line("num_nodes")
            environment["SKYPILOT_NUM_NODES"] = str(nodes)
        gpus = str(value_at(self._data, "resources.accelerators") or "").rpartition(":")[2]
        if gpus.isdecimal():
            counts["launch.nproc"] = int(gpus), "accelerators", self._line("resources.accelerators")
            environment["SKYPILOT_NUM_GPUS_PER_NODE"] = gpus
        lines = tuple(range(first, first + text.count("\n") + 1))
        folder = str(self._data.get("workdir") or "")
        return Snippet(
            self._file, text, lines, label="task", environment=environment, counts=counts, folder=folder
        )

    def _line(self, path: str) -> int:
        return self._lines.get(path, 1)


def _containers(data: Json, path: str) -> Iterator[tuple[str, list[Json], JsonObject]]:
    """Yield each list of containers with its path and its pod."""
    if isinstance(data, dict):
        for key, value in data.items():
            here = f"{path}.{key}" if path else key
            if key in ("containers", "initContainers") and isinstance(value, list):
                yield here, value, data
            else:
                yield from _containers(value, here)
    elif isinstance(data, list):
        for number, value in enumerate(data):
            yield from _containers(value, f"{path}.{number}")


def _given(kind: str, counts: Mapping[str, tuple[int, str, int]]) -> dict[str, str]:
    """Return the variables that Kubeflow's operators set for each container, as far as they are certain."""
    nodes = counts.get("launch.nnodes", (1, "", 0))[0]
    processes = counts.get("launch.nproc")
    if kind not in ("PyTorchJob", "TrainJob"):
        return {}
    known = {"PET_NNODES": str(nodes)}
    if processes and processes[1] in ("nprocPerNode", "numProcPerNode"):
        known["PET_NPROC_PER_NODE"] = str(processes[0])
    if kind == "PyTorchJob":
        each = processes[0] if processes and processes[1] == "nprocPerNode" else 1
        known["WORLD_SIZE"] = str(nodes * each)
    return known


def _filled(word: str, environment: Mapping[str, str]) -> str:
    """Fill in ``$(NAME)`` as Kubernetes does; a name that has no value stays as it is written."""
    return _FILLED.sub(
        lambda matches: "$" if matches[0] == "$$" else environment.get(matches[1], matches[0]), word
    )


def _listed(value: Json) -> list[Json]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []
