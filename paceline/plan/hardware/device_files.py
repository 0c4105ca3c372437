"""Facts from device files, the installed torch's files and compilers, without starting anything."""

from __future__ import annotations

import ast
import importlib.util
import platform
import shutil
import sys
import sysconfig
from importlib import metadata, util
from pathlib import Path

from paceline.plan.hardware.probe_results import DeviceFiles, Wheel

# gfx908, 90a, 942, 950, 1030, 1100, 1101, 1102, 1200 and 1201 as the kernel writes them
_AMD_CARDS = (90008, 90010, 90402, 90500, 100300, 110000, 110001, 110002, 120000, 120001)


def device_nodes(root: Path = Path("/")) -> DeviceFiles:
    """Return the accelerators that ``/dev`` shows."""
    dev = root / "dev"
    amd, processors = _amd_cards(root) if (dev / "kfd").exists() else (0, 0)
    mac = root == Path("/") and sys.platform == "darwin" and platform.machine() == "arm64"
    doubtful = ("dxg", "nvgpu", "nvhost-gpu")  # Windows' Linux and Tegra boards
    return DeviceFiles(
        nvidia=_numbered(dev, "nvidia"),
        amd=amd,
        ascend=_numbered(dev, "davinci"),
        gaudi=_numbered(dev, "hl"),
        unsure=mac or processors > 0 or any((dev / name).exists() for name in doubtful),
        renders=_numbered(dev / "dri", "renderD") > 0,
    )


def _numbered(folder: Path, name: str) -> int:
    return sum(1 for path in folder.glob(f"{name}[0-9]*") if path.name.removeprefix(name).isdigit())


def _amd_cards(root: Path) -> tuple[int, int]:
    """Return the numbers of cards and of integrated GPUs that the kernel's compute driver has."""
    cards = processors = 0
    for properties in (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties"):
        try:
            lines = properties.read_text(encoding="utf-8").splitlines()
        except OSError:
            continue
        values = dict(line.split(maxsplit=1) for line in lines if " " in line)
        if values.get("simd_count", "0") != "0":
            is_card = int(values.get("gfx_target_version", "0")) in _AMD_CARDS
            cards, processors = cards + is_card, processors + (not is_card)
    return cards, processors


def driver_version(root: Path = Path("/")) -> str:
    """Return the version of the loaded NVIDIA or AMD kernel module; empty if it is unknown."""
    for module in ("nvidia", "amdgpu"):
        try:
            return (root / "sys/module" / module / "version").read_text(encoding="utf-8").strip()
        except OSError:
            continue
    return ""


def installed_wheel() -> Wheel:
    """Return the installed torch by its metadata and the text of ``torch/version.py``: no import."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Wheel()
    spec = importlib.util.find_spec("torch")
    written = _assignments(Path(spec.origin).with_name("version.py")) if spec and spec.origin else {}
    return Wheel(
        written.get("__version__") or version,
        written.get("cuda"),
        written.get("hip"),
        written.get("xpu"),
        importlib.util.find_spec("torch_npu") is not None,
    )


def _assignments(path: Path) -> dict[str, str]:
    """Return the texts by name of a module with assignments only."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return {}
    values = {}
    for node in tree.body:
        target: ast.expr | None = node.target if isinstance(node, ast.AnnAssign) else None
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = node.targets[0]
        value: object = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            values[target.id] = value.value
    return values


def triton_obstacle() -> str:
    """Return why Triton's kernels cannot be compiled by this Python on this machine; empty if they can."""
    if util.find_spec("triton") is None:
        return "Triton is not installed"
    if not any(map(shutil.which, ("gcc", "clang", "cc"))):
        return "there is no C compiler"
    headers = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if headers.is_file() else "Python.h is missing"


def flash_packages() -> tuple[str, ...]:
    """Return torch's names of the flash kernels whose packages are installed here, without importing them."""
    packages = ["FA3"] if util.find_spec("flash_attn_interface") is not None else []
    spec = util.find_spec("flash_attn")
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    if any((Path(folder) / "cute" / "interface.py").is_file() for folder in folders):
        packages.append("FA4")
    return tuple(packages)
