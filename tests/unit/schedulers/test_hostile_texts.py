"""Every text comes back from every file as it was given, or is refused by name; a shell runs none of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from remote_jobs import KUBERNETES, SYSTEMS, as_dstack, as_kubelet, job_in, rendered, texts
from ruamel.yaml import YAML
from support import swept

from paceline.core.errors import ConfigError
from paceline.core.json_types import value_at
from paceline.schedulers.job import Rendering
from paceline.schedulers.templates import documents

COUNT, PARTS = 200, 25
OTHERS = ("ray", "skypilot", "dstack")
KINDS = ("trainjob", "jobset", "job", "pytorchjob")


def objects(text: str) -> list[Any]:
    """The documents of a file, as a reader of YAML 1.1 and one of 1.2 both read them."""
    old = list(yaml.safe_load_all(text))
    new = list(YAML(typ="safe", pure=True).load_all(text))
    assert old == new
    return old


def leaves(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (text for pair in value.items() for item in pair for text in leaves(item))
    elif isinstance(value, list):
        yield from (text for item in value for text in leaves(item))
    elif isinstance(value, str):
        yield value


def held(system: str, rendering: Rendering) -> set[str]:
    """All texts of the files that mean something to the system, as it reads them."""
    found: set[str] = set()
    for name, text in rendering.files.items():
        if name.endswith((".yaml", ".yml")) and not name.startswith("ray/"):
            found |= set(leaves(objects(text)))
        elif name.endswith(".json"):
            found |= set(leaves(json.loads(text)))
    found |= {word for argv in rendering.submit for word in argv}
    if system == "kubernetes":
        found |= {as_kubelet(text) for text in found}
    return found | ({as_dstack(text) for text in found} if system == "dstack" else set())


def given_to_launcher(system: str, rendering: Rendering) -> tuple[dict[str, str], list[str]]:
    """The variables and the command of a node's launcher, as the system hands them on."""
    if system == "ray":
        task = json.loads(rendering.files["ray/task.json"])
        return task["env"], task["arguments"]
    if system in CLOUDS:
        return script_of(system, rendering)[1], []
    (container, *_) = containers(objects(rendering.files["job.yaml"]))
    env = {one["name"]: as_kubelet(one["value"]) for one in container["env"] if "value" in one}
    return env, [as_kubelet(word) for word in container["command"]]


def containers(value: Any) -> Iterator[dict[str, Any]]:
    """All containers inside of objects."""
    if isinstance(value, dict):
        yield from value.get("containers", [])
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for one in inner:
        yield from containers(one)


KEYS = ("namespace", "queue", "service_account", "gpu_resource", "shm_size")
#: keys of Kubernetes with one text in a list or mapping
AMONG: dict[str, Callable[[str], Any]] = {
    "image_pull_secrets": lambda text: [text],
    "node_selector": lambda text: {"zone": text},
    "tolerations": lambda text: [{"key": "a", "operator": "equal", "value": text}],
    "rdma": lambda text: {text: 1},
}
CLOUDS = ("skypilot", "dstack")


def places() -> Iterator[tuple[str, str, Callable[[str], dict[str, Any]]]]:
    """(system, key, what a job is given): each key that holds one text, for each system that reads it."""
    for system in ("kubernetes", *CLOUDS):
        yield system, "image", lambda text: {"site": {"image": text}}
    yield "kubernetes", "interface", lambda text: {"site": {"interface": text}}
    yield "kubernetes", "memory", lambda text: {"site": {"memory": text}}
    yield "kubernetes", "secrets", lambda text: {"secrets": {"HF_TOKEN": f"{text}/{text}"}}
    yield "ray", "run", lambda text: {"run": f"/work/{text}"}
    for key in KEYS:
        yield "kubernetes", key, lambda text, key=key: {"site": {"kubernetes": {**KUBERNETES, key: text}}}
    for key, made in AMONG.items():
        yield (
            "kubernetes",
            key,
            lambda text, key=key, made=made: {"site": {"kubernetes": {**KUBERNETES, key: made(text)}}},
        )
    yield "skypilot", "infra", lambda text: {"site": {"skypilot": {"infra": text}}}
    yield "skypilot", "gpu", lambda text: {"site": {"gpu": text}}
    yield "dstack", "gpu", lambda text: {"site": {"gpu": text}}
    for key in ("backends", "fleets"):
        yield "dstack", key, lambda text, key=key: {"site": {"dstack": {key: [text]}}}
    yield "ray", "address", lambda text: {"site": {"ray": {"address": text}}}


@pytest.mark.parametrize(
    ("system", "key", "given", "part"),
    swept(((*place, part) for place in places() for part in range(PARTS)), every=PARTS),
)
def test_the_text_of_a_key_comes_back_or_is_refused(
    system: str, key: str, given: Callable[[str], dict[str, Any]], part: int, tmp_path: Path
) -> None:
    for text in texts(COUNT)[part::PARTS]:
        try:
            rendering = rendered(system, job_in(tmp_path, **given(text)))
        except ConfigError as error:
            assert {finding.code for finding in error.diagnostics} == {"schedulers.value"}
            continue
        found = held(system, rendering)
        written = (text, f"docker:{text}", f"training.output_dir=/work/{text}")
        assert any(wanted in found for wanted in written), text


@pytest.mark.parametrize(
    ("system", "kind"), [*(("kubernetes", kind) for kind in KINDS), *((s, "") for s in OTHERS)]
)
def test_all_texts_come_back_from_variables_and_overrides(system: str, kind: str, tmp_path: Path) -> None:
    hostile = texts(COUNT)
    variables = {f"V{number}": text for number, text in enumerate(hostile)}
    overrides = tuple(f"training.run_name={text}" for text in hostile)
    options = {**KUBERNETES, **({"kind": kind} if kind else {})}
    job = job_in(tmp_path, env=variables, overrides=overrides, site={"kubernetes": options})
    env, command = given_to_launcher(system, rendered(system, job))
    assert {name: env[name] for name in variables} == variables
    if system not in CLOUDS:  # there they stand in a script, which is run below
        assert [word for word in command if word.startswith("training.run_name=")] == list(overrides)


def test_every_text_is_quoted_as_key_and_value_for_every_parser() -> None:
    value = {text: [text, {"k": text}] for text in texts(2000, seed=1)}
    text = documents(value)
    assert objects(text) == [value]


def test_the_config_itself_comes_back(tmp_path: Path) -> None:
    for text in texts(COUNT)[:: PARTS // 2]:
        if "\r" in text or "\x07" in text or "\x85" in text or "\u2028" in text or "\ufeff" in text:
            continue  # no YAML text holds these as they are
        job = job_in(tmp_path)
        whole = f"training:\n  max_steps: 2\n  run_name: {json.dumps(text)}\n"
        job.config.write_text(whole, encoding="utf-8")
        (first, *_) = objects(rendered("kubernetes", job).files["job.yaml"])
        assert value_at(first, "data.file-0") == whole
        assert rendered("ray", job).files["ray/my.yaml"] == whole


STUB = """#!{python}
import json, os, sys
with open(os.environ["SEEN"], "w") as file:
    json.dump([sys.argv[1:], os.environ.get("HF_TOKEN"), os.environ.get("MINE")], file)
"""


def script_of(system: str, rendering: Rendering) -> tuple[str, dict[str, str]]:
    """The script that a node runs, and the variables that the service gives it."""
    if system == "dstack":
        (task,) = objects(rendering.files["task.dstack.yml"])
        env = {key: as_dstack(value) for key, value in task["env"].items() if isinstance(value, str)}
        return rendering.files["node.sh"].replace("cd -- /paceline", "cd -- ."), env
    (task,) = objects(rendering.files["task.yaml"])
    return task["run"], task["envs"]


@pytest.mark.parametrize("system", ["skypilot", pytest.param("dstack", marks=pytest.mark.full)])
def test_a_node_runs_the_command_and_nothing_of_a_text(system: str, tmp_path: Path) -> None:
    """The real script in a real bash, with a program in place of ours that writes down how it is called."""
    folder = tmp_path / "home"
    (folder / "paceline").mkdir(parents=True)
    stub = folder / "bin" / "paceline"
    stub.parent.mkdir()
    stub.write_text(STUB.format(python=sys.executable))
    stub.chmod(0o755)
    seen, token = folder / "seen.json", folder / "to 'ken"
    token.write_text("value of the secret\n")
    given = {
        "PATH": f"{stub.parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "SEEN": str(seen),
        "SKYPILOT_NODE_RANK": "3",
        "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
        "DSTACK_NODE_RANK": "3",
        "DSTACK_MASTER_NODE_IP": "10.0.0.1",
    }
    for text in texts(COUNT)[::4]:
        job = job_in(
            tmp_path,
            overrides=(f"training.run_name={text}",),
            env={"MINE": text},
            secrets={"HF_TOKEN": str(token)},
        )
        script, env = script_of(system, rendered(system, job))
        done = subprocess.run(
            ["bash", "-c", script],
            env={**env, **given},
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        argv, secret, mine = json.loads(seen.read_text())
        assert argv[:3] == ["train", "my.yaml", f"training.run_name={text}"]
        assert argv[-6:] == ["--node-rank", "3", "--master-addr", "10.0.0.1", "--master-port", "29500"]
        assert (secret, mine) == ("value of the secret", text)
        assert sorted(path.name for path in folder.iterdir()) == ["bin", "paceline", "seen.json", "to 'ken"]
        assert list((folder / "paceline").iterdir()) == []


@pytest.mark.parametrize(("code", "answer"), [(0, 0), (70, 0), (75, 75), (2, 2), (76, 76), (137, 137)])
def test_a_node_answers_with_the_launchers_code(code: int, answer: int, tmp_path: Path) -> None:
    script = _script_with(f"exit {code}", tmp_path)
    done = subprocess.run(["bash", "-c", script], env=_home(tmp_path), check=False)
    assert done.returncode == answer


def test_a_stop_reaches_the_launcher_which_leaves_with_its_own_code(tmp_path: Path) -> None:
    script = _script_with('trap "exit 75" TERM; echo started; while :; do sleep 0.05; done', tmp_path)
    with subprocess.Popen(["bash", "-c", script], env=_home(tmp_path), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdout.readline() == b"started\n"
        process.terminate()  # the script alone, not its group
        assert process.wait(60) == 75


def _bash(script: str, env: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    command = ["bash", "-c", script]
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)


def _script_with(body: str, folder: Path) -> str:
    (folder / "bin").mkdir()
    (folder / "paceline").mkdir()
    program = folder / "bin" / "paceline"
    program.write_text(f"#!/bin/bash\n{body}\n")
    program.chmod(0o755)
    return script_of("skypilot", rendered("skypilot", job_in(folder)))[0]


def _home(folder: Path) -> dict[str, str]:
    given = {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NODE_IPS": "10.0.0.1"}
    return {"HOME": str(folder), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", **given}


@pytest.mark.parametrize("system", SYSTEMS)
def test_no_file_and_no_command_holds_a_secret(
    system: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = "hf_" + "Z" * 34
    place = {
        "kubernetes": "hub/token",
        "skypilot": "HF_TOKEN",
        "dstack": "hub",
        "ray": str(tmp_path / "token"),
    }
    (tmp_path / "token").write_text(value)
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "store-secret").write_text(value)
    for name in ("HF_TOKEN", "PACELINE_STORE_SECRET", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, value)
    job = job_in(tmp_path, secrets={"HF_TOKEN": place[system]}, site={"kubernetes": KUBERNETES})
    rendering = rendered(system, job)
    assert value not in repr(rendering)
    assert "HF_TOKEN" in "".join(rendering.files.values()), "but it is asked for"


def test_a_command_gets_the_secret_in_its_environment_alone(tmp_path: Path) -> None:
    """What submits to SkyPilot and dstack, with a shell in place of their programs."""
    (tmp_path / "job").mkdir()
    file = tmp_path / "job" / "store-secret"
    file.write_text("0123456789abcdef\n")
    file.chmod(0o600)
    for system in CLOUDS:
        (submit,) = rendered(system, job_in(tmp_path)).submit
        named = next(index for index, word in enumerate(submit) if word in ("sky", "dstack"))
        shows = ("sh", "-c", 'printf "%s|%s" "$PACELINE_STORE_SECRET" "$*"', *submit[named:])
        done = subprocess.run((*submit[:named], *shows), capture_output=True, text=True, check=True)
        assert done.stdout == f"0123456789abcdef|{' '.join(submit[named + 1 :])}"
