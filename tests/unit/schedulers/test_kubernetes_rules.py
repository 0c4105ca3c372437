"""What the API server and the controllers demand beyond schemas, and what follows when a pod fails."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from remote_jobs import KUBERNETES, as_kubelet, job_in, rendered

from paceline.config.load import load_config
from paceline.core.errors import ConfigError, ExitCode
from paceline.launch.supervision.exit_codes import AFTER, After
from paceline.schedulers.job import ServedModel, dns_name

KINDS = ("trainjob", "jobset", "job", "pytorchjob")
#: RFC 1035, as JobSet and TrainJob demand of their names
LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def of(kind: str, folder: Path, **changed: Any) -> dict[str, Any]:
    """The objects of a job by their kind."""
    site = changed.pop("site", {})
    options = {**KUBERNETES, **site.pop("kubernetes", {}), "kind": kind}
    job = job_in(folder, site={**site, "kubernetes": options}, **changed)
    return {one["kind"]: one for one in yaml.safe_load_all(rendered("kubernetes", job).files["job.yaml"])}


def jobs(objects: dict[str, Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """The specs of Jobs, also inside others, with the name of their pods' container."""
    for one in objects.values():
        spec = one.get("spec", {})
        if one["kind"] == "Job":
            yield spec, "node"
        for outer in (spec, spec.get("template", {}).get("spec", {})):
            for inner in outer.get("replicatedJobs", []):
                yield inner["template"]["spec"], "node"


def pods(objects: dict[str, Any]) -> list[dict[str, Any]]:
    found = [spec["template"]["spec"] for spec, _ in jobs(objects)]
    replicas = objects.get("PyTorchJob", {}).get("spec", {}).get("pytorchReplicaSpecs", {})
    return [*found, *(replica["template"]["spec"] for replica in replicas.values())]


def answer(spec: dict[str, Any], code: int, disrupted: bool = False) -> str:
    """What the Job controller does with a failed pod: the first rule that matches, else it counts."""
    for rule in spec["podFailurePolicy"]["rules"]:
        named = rule.get("onExitCodes")
        if named and (code in named["values"]) is (named["operator"] == "In"):
            return str(rule["action"])
        if disrupted and any(one["type"] == "DisruptionTarget" for one in rule.get("onPodConditions", [])):
            return str(rule["action"])
    return "Count"


@pytest.mark.parametrize("kind", ["trainjob", "jobset", "job"])
def test_a_pods_exit_code_has_what_the_one_table_says(kind: str, tmp_path: Path) -> None:
    does = {After.FAIL: "FailJob", After.RESUME: "Ignore", After.COUNT: "Count", After.DONE: "FailJob"}
    ((spec, _),) = jobs(of(kind, tmp_path))
    for code, follows in AFTER.items():
        assert code == 0 or answer(spec, code) == does[follows], code
    assert answer(spec, 1) == answer(spec, 139) == "Count"
    assert answer(spec, 137, disrupted=True) == "Ignore"
    assert answer(spec, ExitCode.CONFIG, disrupted=True) == "FailJob"


@pytest.mark.parametrize("kind", ["trainjob", "jobset", "job"])
def test_the_policy_keeps_the_api_servers_rules(kind: str, tmp_path: Path) -> None:
    ((spec, container),) = jobs(of(kind, tmp_path))
    rules = spec["podFailurePolicy"]["rules"]
    assert 0 < len(rules) <= 20
    for rule in rules:
        assert rule["action"] in ("FailJob", "Ignore", "Count", "FailIndex")
        assert ("onExitCodes" in rule) != ("onPodConditions" in rule)
        if "onExitCodes" in rule:
            values = rule["onExitCodes"]["values"]
            assert rule["onExitCodes"]["operator"] in ("In", "NotIn")
            assert values == sorted(set(values)) and 0 < len(values) <= 255 and 0 not in values
            assert rule["onExitCodes"]["containerName"] == container
    pod = spec["template"]["spec"]
    assert pod["restartPolicy"] == "Never"
    assert [one["name"] for one in pod["containers"]] == [container]
    assert spec["completionMode"] == "Indexed" and spec["completions"] == spec["parallelism"] == 4


@pytest.mark.parametrize("kind", ["trainjob", "jobset"])
def test_the_whole_gang_starts_again_up_to_the_limit(kind: str, tmp_path: Path) -> None:
    objects = of(kind, tmp_path, site={"max_restarts": 7})
    spec = (
        objects["JobSet"]["spec"]
        if kind == "jobset"
        else objects["TrainingRuntime"]["spec"]["template"]["spec"]
    )
    assert spec["failurePolicy"]["maxRestarts"] == 7
    (rule,) = spec["failurePolicy"]["rules"]
    assert rule["action"] == "FailJobSet" and "PodFailurePolicy" in rule["onJobFailureReasons"]
    assert re.fullmatch(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?", rule["name"])
    assert set(rule["targetReplicatedJobs"]) <= {one["name"] for one in spec["replicatedJobs"]}
    # one failed pod fails its Job, or the others would wait for it
    assert [one["template"]["spec"]["backoffLimit"] for one in spec["replicatedJobs"]] == [0]


def test_an_indexed_jobs_pods_each_count_their_own_restarts(tmp_path: Path) -> None:
    objects = of("job", tmp_path, site={"max_restarts": 7})
    spec = objects["Job"]["spec"]
    assert (spec["backoffLimitPerIndex"], spec["maxFailedIndexes"]) == (7, 0) and "backoffLimit" not in spec
    service = objects["Service"]
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"] is True
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"batch.kubernetes.io/job-name": objects["Job"]["metadata"]["name"]}


def gangs(objects: dict[str, Any]) -> Any:
    """The spec of the JobSet, also inside a TrainingRuntime."""
    if "JobSet" in objects:
        return objects["JobSet"]["spec"]
    return objects["TrainingRuntime"]["spec"]["template"]["spec"]


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    (container,) = pod["containers"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in container["env"]}


def test_the_pods_of_a_gang_meet_at_its_first_one(tmp_path: Path) -> None:
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    for kind, address in (("jobset", "my-run-node-0-0.my-run"), ("job", "my-run-0.my-run")):
        (pod,) = pods(of(kind, tmp_path))
        env = variables(pod)
        assert env["PET_NODE_RANK"] == index
        assert {
            key: env[key] for key in sorted(env) if key.startswith("PET_") and key != "PET_NODE_RANK"
        } == {
            "PET_MASTER_ADDR": address,
            "PET_MASTER_PORT": "29500",
            "PET_NNODES": "4",
            "PET_NPROC_PER_NODE": "8",
        }


def test_kubeflow_trainer_sets_the_place_itself_and_refuses_it_of_others(tmp_path: Path) -> None:
    objects = of("trainjob", tmp_path)
    (pod,) = pods(objects)
    assert not [name for name in variables(pod) if name.startswith("PET_")]
    runtime, train = objects["TrainingRuntime"], objects["TrainJob"]
    assert list(objects).index("TrainingRuntime") < list(objects).index("TrainJob"), "it must be there first"
    reference = train["spec"]["runtimeRef"]
    assert reference["kind"] == runtime["kind"] and reference["name"] == runtime["metadata"]["name"]
    assert reference["apiGroup"] == runtime["apiVersion"].split("/")[0]
    # its controller sets PET_* only where the TrainJob has a trainer, and the label names the Job
    assert train["spec"]["trainer"] == {"numNodes": 4, "numProcPerNode": 8}
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    assert (job["name"], job["replicas"]) == ("node", 1)


def test_a_pytorch_job_hides_the_operators_ranks(tmp_path: Path) -> None:
    spec = of("pytorchjob", tmp_path)["PyTorchJob"]["spec"]
    replicas = spec["pytorchReplicaSpecs"]
    assert {name: one["replicas"] for name, one in replicas.items()} == {"Master": 1, "Worker": 3}
    assert {one["restartPolicy"] for one in replicas.values()} == {"OnFailure"}
    assert spec["nprocPerNode"] == "8" and spec["runPolicy"]["backoffLimit"] == 3
    for one in replicas.values():
        pod = one["template"]["spec"]
        (container,) = pod["containers"]
        assert container["name"] == "pytorch" and container["ports"][0]["name"] == "pytorchjob-port"
        assert "restartPolicy" not in pod, "the operator's"
        assert container["command"][:9] == [
            *("env", "-u", "RANK", "-u", "WORLD_SIZE", "-u", "MASTER_ADDR", "-u", "MASTER_PORT"),
        ]
        assert "PET_NODE_RANK=$(RANK)" in container["command"], "which the kubelet fills in"
        assert "PET_MASTER_ADDR=my-run-master-0" in container["command"]
    assert set(of("pytorchjob", tmp_path, nodes=1)["PyTorchJob"]["spec"]["pytorchReplicaSpecs"]) == {"Master"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_pod_has_what_a_run_needs(kind: str, tmp_path: Path) -> None:
    pod = pods(of(kind, tmp_path, secrets={"HF_TOKEN": "hub/token"}))[0]
    (container,) = pod["containers"]
    shm = next(one for one in pod["volumes"] if one["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": "64Gi"}
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    limits = container["resources"]["limits"]
    assert limits == {"nvidia.com/gpu": "8", "rdma/hca": "8", "memory": "256G"}
    assert container["resources"]["requests"] == {**limits, "cpu": "32"}
    assert container["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}
    assert pod["terminationGracePeriodSeconds"] > 180, "save_seconds, and the time to leave"
    assert pod["serviceAccountName"] == "trainer" and pod["nodeSelector"] == {"cloud.example/gpu": "h100"}
    assert pod["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "a", "effect": "NoSchedule"},
    ]
    env = variables(pod)
    assert env["HF_TOKEN"] == {"secretKeyRef": {"name": "hub", "key": "token"}}
    assert env["PACELINE_STORE_SECRET"] == {"secretKeyRef": {"name": "my-run-store", "key": "secret"}}
    assert env["NCCL_SOCKET_IFNAME"] == env["GLOO_SOCKET_IFNAME"] == "eth0"
    for probe in (container["startupProbe"], container["livenessProbe"]):
        assert probe["timeoutSeconds"] < probe["periodSeconds"]
        assert probe["exec"]["command"][-2:] == ["paceline.runtime.failures.pod_probe", "/paceline/run"]
    queued = of(kind, tmp_path)[
        {"trainjob": "TrainJob", "jobset": "JobSet", "job": "Job"}.get(kind, "PyTorchJob")
    ]
    assert queued["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}
    assert queued["metadata"]["namespace"] == "research"


def test_an_upload_has_the_time_that_the_pod_gives(tmp_path: Path) -> None:
    (pod,) = pods(of("job", tmp_path))
    assert "training.upload_timeout=180" in pod["containers"][0]["command"]
    (pod,) = pods(of("job", tmp_path, upload_timeout=600.0))
    assert pod["terminationGracePeriodSeconds"] >= 600
    assert not [word for word in pod["containers"][0]["command"] if "upload_timeout" in word]


def test_a_run_lies_in_a_volume_or_in_object_storage(tmp_path: Path) -> None:
    claim = {"mounts": ["claim:/work:ro", "claim:/work/outputs", "/ssd:/ssd"]}
    (pod,) = pods(of("job", tmp_path, site=claim, checkpoint_url=None))
    (container,) = pod["containers"]
    assert "training.output_dir=/work/outputs/my-run" in container["command"]
    assert container["workingDir"] == "/work"
    sources = [one.get("persistentVolumeClaim", one.get("hostPath")) for one in pod["volumes"]]
    assert [one for one in sources if one] == [
        {"claimName": "claim"},
        {"claimName": "claim"},
        {"path": "/ssd"},
    ]
    read_only = {one["mountPath"] for one in container["volumeMounts"] if one.get("readOnly")}
    assert read_only == {"/etc/paceline", "/work"}
    with pytest.raises(ConfigError) as lost:
        of("job", tmp_path, checkpoint_url=None)
    assert [finding.code for finding in lost.value.diagnostics] == ["schedulers.lost"]


def test_a_config_takes_along_the_files_that_it_names(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "parts" / "base.yaml").write_text("training:\n  max_steps: 3\n")
    job = job_in(tmp_path, site={"kubernetes": {"kind": "job"}})
    job.config.write_text("extends: parts/base.yaml\ntraining:\n  max_steps: 2\n")
    (settings, _, batch) = yaml.safe_load_all(rendered("kubernetes", job).files["job.yaml"])
    items = batch["spec"]["template"]["spec"]["volumes"][0]["configMap"]["items"]
    texts = {one["path"]: settings["data"][one["key"]] for one in items}
    assert texts == {
        "my.yaml": "extends: parts/base.yaml\ntraining:\n  max_steps: 2\n",
        "parts/base.yaml": "training:\n  max_steps: 3\n",
    }
    (tmp_path / "inner").mkdir()
    outside = job_in(tmp_path / "inner")
    outside.config.write_text("extends: ../parts/base.yaml\n")
    with pytest.raises(ConfigError, match="outside of its folder"):
        rendered("kubernetes", outside)


NAMES = ("a" * 90, "Ümlaut run", "2026-run", "run_1", "---", "数据", "", "a.b", "A" * 40, "x" * 41, "my-run")


@pytest.mark.parametrize("name", NAMES)
def test_any_name_becomes_one_of_kubernetes(name: str, tmp_path: Path) -> None:
    """Also with what controllers append: JobSet checks pods' names with five digits' worth of pods."""
    made = dns_name(name)
    assert LABEL.fullmatch(made) and LABEL.fullmatch(f"{made}-servers-0-99999-abcde")
    assert dns_name(made) == made or len(made) > 40
    for kind in KINDS:
        for one in of(kind, tmp_path, name=name).values():
            assert LABEL.fullmatch(one["metadata"]["name"]), one["metadata"]["name"]


def test_different_names_stay_different() -> None:
    assert len({dns_name(name) for name in (*NAMES, "a" * 91, "run-1", "Run_1", "run 1")}) == len(NAMES) + 4


def test_all_findings_come_at_once(tmp_path: Path) -> None:
    site = {
        "image": None,
        "modules": ["cuda"],
        "memory": "256GB",
        "mounts": ["claim", "Claim:/a", "c:/b", "d:/b"],
        "kubernetes": {
            "namespace": "A",
            "shm_size": "big",
            "tolerations": [{"value": "x"}],
            "rdma": {"a": "many"},
        },
    }
    with pytest.raises(ConfigError) as refused:
        rendered(
            "kubernetes", job_in(tmp_path, site=site, secrets={"HF_TOKEN": "/file"}, checkpoint_url=None)
        )
    assert sorted(finding.where for finding in refused.value.diagnostics) == [
        "launch.image",
        "launch.kubernetes.namespace",
        "launch.kubernetes.rdma",
        "launch.kubernetes.shm_size",
        "launch.kubernetes.tolerations",
        "launch.memory",
        "launch.modules",
        *["launch.mounts"] * 3,
        "launch.secrets.HF_TOKEN",
        "training.checkpoint_url",
    ]


SERVED = ServedModel("org/model", 4096, None, "v1")
GANG = {"image": "vllm/vllm-openai:v0.32.0", "count": 2, "gpus": 4, "arguments": ["--enable-lora"]}


@pytest.mark.parametrize("kind", ["trainjob", "jobset"])
@pytest.mark.parametrize("nodes", [1, 4])
def test_servers_are_ready_before_the_trainers_and_leave_after_them(
    kind: str, nodes: int, tmp_path: Path
) -> None:
    objects = of(kind, tmp_path, site={"kubernetes": {"servers": GANG}}, served=SERVED, nodes=nodes)
    spec = (
        objects["JobSet"]["spec"]
        if kind == "jobset"
        else objects["TrainingRuntime"]["spec"]["template"]["spec"]
    )
    servers, trainers = spec["replicatedJobs"]
    assert "dependsOn" not in servers, "JobSet refuses it of the first"
    assert trainers["dependsOn"] == [{"name": servers["name"], "status": "Ready"}]
    assert spec["successPolicy"]["targetReplicatedJobs"] == [trainers["name"]], "servers run until the end"
    assert servers["template"]["spec"]["completions"] == 2
    pod, trainer = (
        servers["template"]["spec"]["template"]["spec"],
        trainers["template"]["spec"]["template"]["spec"],
    )
    (container,) = pod["containers"]
    seconds = int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert trainer["terminationGracePeriodSeconds"] <= seconds < pod["terminationGracePeriodSeconds"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert container["readinessProbe"]["httpGet"] == {"path": "/health", "port": 8000}
    assert container["command"][-3:] == ["--revision", "v1", "--enable-lora"]
    key = {"secretKeyRef": {"name": "my-run-store", "key": "secret"}}
    assert variables(pod)["VLLM_API_KEY"] == key == variables(trainer)["PACELINE_STORE_SECRET"]

    settings = [as_kubelet(word) for word in trainer["containers"][0]["command"] if "=" in word]
    config = tmp_path / "c.yaml"
    config.write_text("training: {algorithm: grpo, rollout: {rewards: [{name: length}]}}\n")
    rollout = load_config(str(config), settings).config.training.rollout
    assert rollout is not None
    assert [server.url for server in rollout.all_servers] == [
        f"http://my-run-servers-0-{index}.my-run:8000" for index in range(2)
    ]
    assert {server.api_key_env for server in rollout.all_servers} == {"PACELINE_STORE_SECRET"}


def test_servers_need_a_gang_and_rollouts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        of("job", tmp_path, site={"kubernetes": {"servers": GANG}})
    assert [finding.where for finding in refused.value.diagnostics] == [
        "launch.kubernetes.kind",
        "launch.kubernetes.servers",
    ]
