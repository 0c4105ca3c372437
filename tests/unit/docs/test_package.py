"""What the wheel and the container hold: every file of the package, and nothing else."""

from __future__ import annotations

import fnmatch
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType

import pytest
from support import load_script

from paceline.core.package import PACKAGE_VERSION

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def package_files() -> set[str]:
    """The files of paceline/ that are in the repository."""
    listed = subprocess.run(
        ["git", "ls-files", "paceline"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("no repository here")
    return set(listed.stdout.split())


@pytest.fixture(scope="module")
def container() -> ModuleType:
    return load_script("try_dockerfile")


def test_every_data_file_is_declared() -> None:
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["paceline"]
    data = {name.removeprefix("paceline/") for name in package_files() if not name.endswith(".py")}
    assert len(data) > 20
    assert [
        n for n in sorted(data) if not any(fnmatch.fnmatch(n, p.replace("**/", "*")) for p in patterns)
    ] == []
    assert not any(fnmatch.fnmatch("watch/page/texts.toml", p) for p in patterns), (
        "another kind would be seen"
    )


def test_one_version_everywhere() -> None:
    """A release is named alike by the package, its metadata, its citation and the newest change."""
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text("utf-8"), re.MULTILINE)
    assert newest and cited
    assert {newest[1], cited[1], PROJECT["project"]["version"]} == {PACKAGE_VERSION}


def test_every_folder_of_code_is_a_package() -> None:
    folders = {Path(name).parent for name in package_files() if name.endswith(".py")}
    assert [str(f) for f in sorted(folders) if not (ROOT / f / "__init__.py").exists()] == []


def test_what_the_container_copies_is_let_through(container: ModuleType) -> None:
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for target in ("cpu", "cuda"):
        found = list(container.instructions(target))
        copied = [name for word, text in found if word == "COPY" for name in text.split()[:-1]]
        assert copied and all((ROOT / name).exists() and f"!{name}" in ignored for name in copied)
        extras = [text.split("[")[1].split("]")[0] for _, text in found if "/src[" in text]
        assert set(",".join(extras).split(",")) <= set(PROJECT["project"]["optional-dependencies"])
        lines = [container.tried(text, Path("/x"), resolve=True) for word, text in found if word == "RUN"]
        assert lines[0] == "apt-get install --simulate --no-install-recommends g++ libaio-dev"
        assert lines[1] == "python3 -m venv /x/venv" and '"/x/src[' in lines[2] and "--dry-run" in lines[2]


@pytest.mark.slow
def test_the_wheel_holds_the_package(tmp_path: Path) -> None:
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True, timeout=280)
    (wheel,) = tmp_path.glob("paceline-*.whl")
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == package_files()
