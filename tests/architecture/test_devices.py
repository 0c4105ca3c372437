"""What differs between kinds of devices stands in one table: nobody else compares with a device's name."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import torch.distributed as dist
from sources import Source, sources

from paceline.plan.hardware.device_kinds import CPU, KINDS, UNDRIVEN

NAMES = {*KINDS, *UNDRIVEN} - {CPU.name}
TABLE = "paceline/plan/hardware/device_kinds.py"
#: Places that name one all the same, and why.
ALLOWED = {
    ("paceline/plan/hardware/device_files.py", "cuda"): "a name in torch/version.py",
    ("paceline/plan/hardware/device_files.py", "xpu"): "a name in torch/version.py",
    ("paceline/runtime/device/probe.py", "xpu"): "the version that torch was built with",
    ("paceline/rules/backend.py", "xla"): "the config's key",
    ("paceline/runtime/device/probe.py", "torch.cuda"): "NCCL's version has no other place",
}


def devices_named(source: Source) -> Iterator[tuple[str, str]]:
    """(line, name) of each device's name as a text, and of each ``torch.<device>``."""
    documents = {
        id(node.value) for node in source.nodes() if isinstance(node, ast.Expr) and _is_text(node.value)
    }
    for node in source.nodes():
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
            if node.value.partition(":")[0] in NAMES and " " not in node.value:
                yield source.at(node), node.value
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch" and node.attr in NAMES:
            yield source.at(node), f"torch.{node.attr}"


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def test_a_device_is_asked_by_its_kind_and_not_by_its_name() -> None:
    found = {
        (source.path, name): place
        for source in sources()
        if source.path != TABLE and not source.path.startswith("paceline/config/")
        for place, name in devices_named(source)
    }
    assert {key: place for key, place in found.items() if key not in ALLOWED} == {}, (
        "ask paceline.plan.hardware.device_kinds, torch.accelerator or torch.get_device_module"
    )
    assert ALLOWED.keys() - found.keys() == set(), "named no more: take it out"


def test_the_scan_sees_what_it_is_for() -> None:
    text = (
        '"""cuda"""\nx = d.type == "cuda"\ny = "cuda:0"\nz = torch.cuda.synchronize()\nw = "a cuda device"\n'
    )
    found = [name for _, name in devices_named(Source("paceline/a.py", "", text, ast.parse(text)))]
    assert sorted(found) == ["cuda", "cuda:0", "torch.cuda"]


def test_backends_are_torchs_own() -> None:
    """hccl is registered by ``torch_npu``; MPS's gloo carries no tensor of the device, so one process."""
    known = {name: dist.get_default_backend_for_device(name) for name in ("cpu", "cuda", "xpu")}
    assert known == {name: KINDS[name].backend for name in known}
    assert (KINDS["npu"].backend, KINDS["mps"].backend) == ("hccl", "")
