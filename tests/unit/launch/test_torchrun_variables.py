"""Pods with torchrun's variables: ``paceline train`` becomes the launcher of that node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support import Run, write_yaml

from paceline.cli.join import as_torchrun_node, drives_a_node, on_its_node
from paceline.core.errors import ConfigError
from paceline.launch.environment.job_managers import TorchrunNode, torchrun_node
from paceline.launch.process_spec import LaunchOptions

#: As Kubeflow Trainer v2 sets them in the second of two pods, and as the training operator v1 does.
TRAINER = {
    "PET_NNODES": "2",
    "PET_NPROC_PER_NODE": "auto",
    "PET_NODE_RANK": "1",
    "PET_MASTER_ADDR": "job-node-0-0.job",
    "PET_MASTER_PORT": "29500",
}
OPERATOR = {
    **TRAINER,
    "PET_NPROC_PER_NODE": "8",
    "RANK": "1",
    "WORLD_SIZE": "16",
    "MASTER_ADDR": "job-master-0",
}


@pytest.mark.parametrize(
    ("environ", "node"),
    [
        (TRAINER, TorchrunNode(2, 1, None, "job-node-0-0.job", 29500)),
        (OPERATOR, TorchrunNode(2, 1, 8, "job-node-0-0.job", 29500)),
        (
            {"PET_NNODES": "2:2", "PET_NODE_RANK": "0", "PET_RDZV_ENDPOINT": "[fd00::1]:1234"},
            TorchrunNode(2, 0, None, "fd00::1", 1234),
        ),
        ({"PET_NNODES": "1", "PET_NPROC_PER_NODE": "2"}, TorchrunNode(1, 0, 2, None, None)),
        ({}, None),
        (
            {**TRAINER, "LOCAL_RANK": "0", "RANK": "1", "WORLD_SIZE": "2"},
            None,
        ),  # a rank that torchrun started
    ],
)
def test_the_variables_name_a_node(environ: Mapping[str, str], node: TorchrunNode | None) -> None:
    assert torchrun_node(environ) == node


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"PET_NNODES": "1:4"}, "PET_NNODES"),
        ({"PET_NNODES": "two"}, "PET_NNODES"),
        ({"PET_NODE_RANK": ""}, "PET_NODE_RANK"),
        ({"PET_NODE_RANK": "2"}, "PET_NODE_RANK"),
        ({"PET_MASTER_ADDR": ""}, "PET_MASTER_ADDR"),
        ({"PET_NPROC_PER_NODE": "all"}, "PET_NPROC_PER_NODE"),
    ],
)
def test_variables_that_name_no_node_are_refused(changed: dict[str, str], name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        torchrun_node({**TRAINER, **changed})
    (finding,) = refused.value.diagnostics
    assert (finding.code, finding.where) == ("launch.torchrun_variables", name)


@pytest.mark.parametrize("environ", [TRAINER, OPERATOR], ids=["trainer", "operator"])
def test_a_pod_is_a_node_whatever_else_its_operator_sets(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for key, value in environ.items():
        monkeypatch.setenv(key, value)
    options = as_torchrun_node(LaunchOptions(resume="auto"))
    assert drives_a_node(options)
    options = on_its_node(options)
    assert (options.nnodes, options.node_rank, options.master_addr, options.master_port, options.resume) == (
        *(2, 1, "job-node-0-0.job", 29500),
        "auto",
    )
    given = LaunchOptions(nnodes=1, nproc=4)
    assert as_torchrun_node(given) == given  # the command line is not overruled


def test_a_world_of_one_beside_several_nodes_is_refused(
    tiny: Callable[..., dict[str, Any]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    yaml = write_yaml(tmp_path / "c.yaml", tiny(use_cpu=True))
    done = paceline("train", str(yaml), "--nnodes", "1", env=TRAINER)
    assert done.code == 2 and "error[launch.torchrun_world]" in done.err, done.err
    assert not (tmp_path / "run").exists()
