"""Hardware from canned files and canned nvidia-smi output."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.plan.codec import from_json, to_json
from paceline.plan.hardware import probe as hardware
from paceline.plan.hardware.probe import (
    Hardware,
    cpu_count,
    cpu_flags,
    host_memory_bytes,
    parse_gpus,
    peak_flops,
    probe_hardware,
    visible_gpus,
)

ROWS = """NVIDIA A100-SXM4-80GB, 81920, 8.0, GPU-aaaa-1
NVIDIA A100-SXM4-80GB, 81920, 8.0, GPU-bbbb-2
Tesla T4, 15360, 7.5, GPU-cccc-3
Broken, [N/A], [N/A], GPU-dddd-4
"""


def test_gpus_are_read_in_bytes_and_broken_rows_left_out() -> None:
    gpus = parse_gpus(ROWS)
    assert [g[0] for g in gpus] == ["NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", "Tesla T4"]
    assert gpus[0][1] == 81920 * 1024 * 1024 and gpus[2][2] == 7.5
    assert parse_gpus("") == [] and parse_gpus("No devices were found") == []


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [1, 2, 3]),
        ("1", [2]),
        ("2,0", [3, 1]),
        ("GPU-bbbb", [2]),
        ("", []),
        ("-1", []),
        ("0,-1,1", [1]),
        ("7", []),
    ],
)
def test_cuda_visible_devices_as_cuda_reads_it(visible: str | None, expected: list[int]) -> None:
    assert [int(g[3][-1]) for g in visible_gpus(parse_gpus(ROWS), visible)] == expected


def a_machine_with(monkeypatch: pytest.MonkeyPatch, rows: str, cpu_build: bool = False) -> None:
    monkeypatch.setattr(hardware, "query_gpus", lambda: parse_gpus(rows))
    monkeypatch.setattr(hardware, "torch_is_cpu_build", lambda: cpu_build)


def test_the_weakest_of_mixed_devices_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    a_machine_with(monkeypatch, ROWS)
    mixed = probe_hardware({})
    assert (mixed.device, mixed.num_devices, mixed.device_name, mixed.bf16, mixed.fp16) == (
        "cuda",
        3,
        "Tesla T4",
        False,
        True,
    )
    assert mixed.memory_bytes == 15360 * 1024 * 1024
    one = probe_hardware({"CUDA_VISIBLE_DEVICES": "0"})
    assert (one.num_devices, one.bf16, one.torch_backends) == (1, True, ("nccl", "gloo"))
    assert from_json(Hardware, to_json(one)) == one


def test_a_cpu_build_of_torch_or_use_cpu_stays_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    a_machine_with(monkeypatch, ROWS, cpu_build=True)
    assert "CPU build" in probe_hardware({}).device_note and probe_hardware({}).device == "cpu"
    a_machine_with(monkeypatch, ROWS)
    assert probe_hardware({}, use_cpu=True).device == "cpu"
    assert probe_hardware({"CUDA_VISIBLE_DEVICES": ""}).device == "cpu"


def test_processor_flags() -> None:
    flags, name = cpu_flags(
        "processor : 0\nmodel name : Some CPU\nflags : fpu f16c avx512_bf16\n\nprocessor : 1\nflags : other\n"
    )
    assert flags == {"fpu", "f16c", "avx512_bf16"} and name == "Some CPU"
    assert cpu_flags("Features : fp asimdhp bf16\n")[0] >= {"asimdhp", "bf16"}  # arm64
    assert cpu_flags("") == (frozenset(), "CPU")


@pytest.mark.parametrize(
    ("flags", "fp16", "emulated"),
    [("f16c avx512_bf16", True, ()), ("f16c", True, ("bf16",)), ("sse", False, ("bf16",))],
)
def test_what_a_processor_can_do(
    monkeypatch: pytest.MonkeyPatch, flags: str, fp16: bool, emulated: tuple[str, ...]
) -> None:
    a_machine_with(monkeypatch, "")
    monkeypatch.setattr(hardware, "cpu_flags", lambda: (frozenset(flags.split()), "Some CPU"))
    found = probe_hardware({})
    assert (found.bf16, found.fp16, found.emulated) == (True, fp16, emulated)


def test_memory_is_the_smaller_of_machine_and_cgroup(tmp_path: Path) -> None:
    assert host_memory_bytes(tmp_path) == 0
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text("MemTotal:       1000 kB\nMemFree: 1 kB\n")
    assert host_memory_bytes(tmp_path) == 1024000
    cgroup = tmp_path / "sys/fs/cgroup"
    cgroup.mkdir(parents=True)
    (cgroup / "memory.max").write_text("max\n")
    assert host_memory_bytes(tmp_path) == 1024000
    (cgroup / "memory.max").write_text("4096\n")
    assert host_memory_bytes(tmp_path) == 4096


@pytest.mark.parametrize(
    ("own", "limited", "expected"),
    [
        ("0::/user.slice/job.scope", "user.slice/job.scope/memory.max", 2**20),
        ("0::/user.slice/job.scope", "user.slice/memory.max", 2**20),
        ("5:cpu:/x\n4:memory,hugetlb:/slurm/job_7", "memory/slurm/job_7/memory.limit_in_bytes", 2**20),
        ("4:memory:/slurm/job_7/step_0", "memory/slurm/job_7/memory.limit_in_bytes", 2**20),
        ("0::/other", "user.slice/memory.max", 2**30),
    ],
)
def test_the_limit_of_a_group_inside_counts_and_of_every_group_above_it(
    own: str, limited: str, expected: int, tmp_path: Path
) -> None:
    """Slurm and systemd limit a group below the root of the hierarchy, which a process outside a container
    sees whole.
    """
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {2**20} kB\n")
    (tmp_path / "proc/self/cgroup").write_text(own + "\n")
    limit = tmp_path / "sys/fs/cgroup" / limited
    limit.parent.mkdir(parents=True)
    limit.write_text(f"{2**20}\n")
    assert host_memory_bytes(tmp_path) == expected


def test_a_cpu_quota_counts(tmp_path: Path) -> None:
    cgroup = tmp_path / "sys/fs/cgroup"
    cgroup.mkdir(parents=True)
    (cgroup / "cpu.max").write_text("50000 100000\n")
    assert cpu_count(tmp_path) == 1
    (cgroup / "cpu.max").write_text("max 100000\n")
    assert cpu_count(tmp_path) == cpu_count(tmp_path / "nowhere") >= 1


def test_peaks_by_name() -> None:
    h200 = peak_flops("NVIDIA H200")
    assert h200 is not None and h200["bfloat16"] == 989e12
    assert peak_flops("Tesla T4") == {"float16": 65e12}  # no bf16 there
    assert peak_flops("NVIDIA L4") != peak_flops("NVIDIA L40S")
    assert peak_flops("Unheard Of") is None
