"""Hardware from canned files and canned nvidia-smi output."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from paceline.core.plugins.tables import source_of
from paceline.plan.hardware import probe as ask
from paceline.plan.hardware import probe as hardware
from paceline.plan.hardware.device_files import device_nodes
from paceline.plan.hardware.probe import (
    Hardware,
    cpu_count,
    cpu_flags,
    host_memory_bytes,
    peak_flops,
    probe_hardware,
)
from paceline.plan.hardware.probe_results import (
    DeviceFiles,
    ProbedDevice,
    TorchAnswer,
    Wheel,
    best_set,
    runs_on,
    visible_cards,
)
from paceline.plan.hardware.vendor_smi import parse_nvidia
from paceline.plan.plan_json import from_json, to_json

ROWS = """NVIDIA A100-SXM4-80GB, 81920, 81000, 8.0, GPU-aaaa-1, 580.95.05, Disabled
NVIDIA A100-SXM4-80GB, 81920, 81000, 8.0, GPU-bbbb-2, 580.95.05, Disabled
Tesla T4, 15360, 14900, 7.5, GPU-cccc-3, 580.95.05, [N/A]
Unified, [N/A], [N/A], [N/A], GPU-dddd-4, 580.95.05, [N/A]
"""


def test_cards_are_read_in_bytes_and_what_one_has_not_is_unknown() -> None:
    answer = parse_nvidia(ROWS)
    gpus = answer.devices
    assert answer.driver == "580.95.05" and not answer.failure
    assert [g.name for g in gpus][2:] == ["Tesla T4", "Unified"]
    assert gpus[0].total_bytes == 81920 * 1024 * 1024 and gpus[2].capability == 7.5
    assert (gpus[3].total_bytes, gpus[3].free_bytes, gpus[3].capability) == (None, None, None)
    assert parse_nvidia("").devices == () == parse_nvidia("No devices were found").devices
    assert parse_nvidia("No devices were found").failure == "No devices were found"


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [1, 2, 3, 4]),
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
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert [int(g.uuid[-1]) for g in visible_cards(parse_nvidia(ROWS).devices, environ)] == expected


def seen(
    capability: float | None = None, arch: str = "", gib: float = 24.0, free: float | None = None
) -> ProbedDevice:
    free_bytes = None if free is None else int(free * 2**30)
    return ProbedDevice(f"{capability} {gib}", int(gib * 2**30), free_bytes, capability, arch=arch)


@pytest.mark.parametrize(
    ("device", "archs", "runs"),
    [
        (seen(8.6), "sm_80 sm_90", True),  # machine code of the same generation, an older member
        (seen(8.0), "sm_86 sm_90", False),
        (seen(7.0), "sm_75 sm_80 compute_120", False),
        (seen(12.1), "sm_90 sm_120 compute_120", True),
        (seen(12.1), "sm_90 compute_90", True),  # compiled on first use
        (seen(9.0), "sm_90a", True),
        (seen(10.3), "sm_100a", False),  # code for one member alone
        (seen(10.3), "sm_100f", True),
        (seen(6.1), "sm_50 sm_60 sm_70", True),
        (seen(arch="gfx942"), "gfx90a gfx942", True),
        (seen(arch="gfx1030"), "gfx90a gfx942", False),
        (seen(), "", True),
    ],
)
def test_which_cards_torch_has_code_for(device: ProbedDevice, archs: str, runs: bool) -> None:
    assert runs_on(device, archs.split()) is runs


@pytest.mark.parametrize(
    ("devices", "used"),
    [
        ([seen(8.9), seen(6.1, gib=2)], (0,)),
        ([seen(6.1, gib=2), seen(8.9)], (1,)),
        ([seen(8.6, gib=24), seen(8.6, gib=12)], (0, 1)),  # as much memory in all either way: both compute
        ([seen(8.0, gib=80), seen(8.0, gib=80), seen(8.0, gib=40)], (0, 1)),
        ([seen(8.0, gib=80), seen(7.5, gib=80), seen(7.5, gib=80)], (0,)),  # bf16 or not
        ([seen(7.0, gib=16), seen(7.5, gib=16)], (0, 1)),
        ([seen(8.9, gib=24, free=3), seen(8.9, gib=24, free=24)], (1,)),  # somebody else's
    ],
)
def test_unequal_cards_of_which_the_weakest_would_decide(
    devices: list[ProbedDevice], used: tuple[int, ...]
) -> None:
    assert best_set(devices, range(len(devices))) == used


def test_hardware_survives_json() -> None:
    one = probe_hardware({}, use_cpu=True)
    assert from_json(Hardware, to_json(one)) == one and one.device_note == "training.use_cpu is set"


def folder(root: Path, files: str) -> Path:
    for name in files.split():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("")
    return root


@pytest.mark.parametrize(
    ("files", "nodes"),
    [
        ("dev/null dev/nvidiactl dev/nvidia-uvm", DeviceFiles()),
        ("dev/nvidiactl dev/nvidia0 dev/nvidia11", DeviceFiles(nvidia=2)),
        ("dev/davinci0 dev/davinci_manager", DeviceFiles(ascend=1)),
        ("dev/hl0 dev/hl_controlD0", DeviceFiles(gaudi=1)),
        ("dev/dxg", DeviceFiles(unsure=True)),
        ("dev/dri/renderD128 dev/dri/card0", DeviceFiles(renders=True)),
        ("dev/kfd", DeviceFiles()),
    ],
)
def test_device_files(tmp_path: Path, files: str, nodes: DeviceFiles) -> None:
    assert device_nodes(folder(tmp_path, files)) == nodes


@pytest.mark.parametrize(
    ("target", "nodes"),
    [("90402", DeviceFiles(amd=1)), ("110003", DeviceFiles(unsure=True)), ("0", DeviceFiles(unsure=True))],
)
def test_a_graphics_unit_within_an_amd_processor_is_no_card(
    tmp_path: Path, target: str, nodes: DeviceFiles
) -> None:
    nodes_folder = "sys/class/kfd/kfd/topology/nodes"
    folder(tmp_path, f"dev/kfd {nodes_folder}/0/properties {nodes_folder}/1/properties")
    topology = tmp_path / nodes_folder
    (topology / "0/properties").write_text("cpu_cores_count 16\nsimd_count 0\n")
    (topology / "1/properties").write_text(f"simd_count 304\ngfx_target_version {target}\n")
    assert device_nodes(tmp_path) == nodes


def test_the_installed_torch_is_read_and_not_imported() -> None:
    program = (
        "import sys; from paceline.plan.hardware.device_files import installed_wheel as f;"
        " print(f().version, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [metadata.version("torch"), "False"]


ANSWER = TorchAnswer(
    "2.13.0+cu130", "cuda", (ProbedDevice("NVIDIA L4", 22 * 2**30, 2**30, 8.9),), cuda="13.0"
)


def test_an_answer_with_devices_is_kept_for_what_it_depends_on_and_free_memory_never(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replies = [(ANSWER, "")] * 4
    monkeypatch.setattr(ask, "query_child", lambda environ: replies.pop())
    wheel = Wheel("2.13.0+cu130", cuda="13.0")
    first, _ = ask.query_torch({}, wheel, tmp_path)
    again, _ = ask.query_torch({}, wheel, tmp_path)
    assert first == ANSWER and len(replies) == 3
    assert again is not None and again.devices[0].total_bytes == 22 * 2**30
    assert (again.fresh, again.devices[0].free_bytes) == (False, None)
    ask.query_torch({"CUDA_VISIBLE_DEVICES": "0"}, wheel, tmp_path)
    assert len(replies) == 2, "another selection of devices is another question"
    ask.query_torch({}, Wheel("2.14.0+cu130", cuda="13.0"), tmp_path)
    assert len(replies) == 1, "so is another torch"
    assert all((source_of(name) or Path()).is_file() for name in ask.ASKERS), "its sources are not found"
    monkeypatch.setattr(ask, "asker_identity", lambda: "another release of Paceline, whose probe was mended")
    ask.query_torch({}, wheel, tmp_path)
    assert replies == [], "and another probe"


@pytest.mark.parametrize("reply", [(None, "no answer"), (TorchAnswer("2.13.0+cu130"), "")])
def test_an_answer_without_devices_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reply: tuple[TorchAnswer | None, str]
) -> None:
    monkeypatch.setattr(ask, "query_child", lambda environ: reply)
    assert (
        ask.query_torch({}, Wheel("2.13.0+cu130"), tmp_path) == reply and list(tmp_path.rglob("*.json")) == []
    )


def test_a_kept_answer_that_is_damaged_is_asked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ask, "query_child", lambda environ: (ANSWER, ""))
    wheel = Wheel("2.13.0+cu130")
    ask.query_torch({}, wheel, tmp_path)
    (record,) = tmp_path.rglob("*.json")
    record.write_text("{")
    assert ask.query_torch({}, wheel, tmp_path) == (ANSWER, "")


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
    monkeypatch.setattr(hardware, "cpu_flags", lambda: (frozenset(flags.split()), "Some CPU"))
    found = probe_hardware({}, use_cpu=True)
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
