"""The secret by which ranks know each other's words: made for one node, named by the user for several, for
nobody else's eyes.
"""

from __future__ import annotations

import contextlib
import re
import stat
import sys
from collections.abc import Callable
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from support import write_yaml

from paceline.cli.main import main as command
from paceline.core.diagnostics import Severity
from paceline.core.errors import ConfigError
from paceline.launch.process_spec import Cluster
from paceline.launch.run_secret import FILE, VALUE, read_secret, secret_environment, unsigned
from paceline.launch.start_run import launch

GOOD = "0123456789abcdef"


def test_one_node_s_ranks_get_a_secret_of_their_own_in_a_file_for_the_owner() -> None:
    with secret_environment({}, 1, 2) as first, secret_environment({}, 1, 2) as second:
        assert list(first) == [FILE]
        path = Path(first[FILE])
        assert (
            stat.S_IMODE(path.stat().st_mode) == 0o600 and stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        )
        assert len(read_secret(first)) == 64 and read_secret(first) != read_secret(second)
    assert not path.parent.exists(), "the secret outlives the run"


@pytest.mark.parametrize(
    ("environ", "nodes", "processes"), [({}, 2, 4), ({}, 1, 1), ({VALUE: GOOD}, 1, 2), ({FILE: "/x"}, 1, 2)]
)
def test_none_is_made_where_it_cannot_be_shared_or_is_named(
    environ: dict[str, str], nodes: int, processes: int
) -> None:
    with secret_environment(environ, nodes, processes) as added:
        assert added == {}


def test_the_workers_find_it_and_it_is_in_no_argument(tmp_path: Path) -> None:
    script = tmp_path / "w.py"
    script.write_text(
        f"import os, sys\nfrom pathlib import Path\nsecret = Path(os.environ[{FILE!r}]).read_text()\nassert"
        " len(secret) == 64 and secret not in Path('/proc/self/cmdline').read_text() and secret not in"
        " repr(dict(os.environ))\nPath(sys.argv[1], os.environ['RANK']).write_text(secret)\n"
    )
    said: list[str] = []
    assert (
        launch(
            (sys.executable, str(script), str(tmp_path)),
            Cluster(2),
            launcher="spawn",
            environ={},
            cores=2,
            report=said.append,
        )
        == 0
    )
    one, two = ((tmp_path / name).read_text() for name in "01")
    assert one == two and not any(one in line for line in said)


def test_the_user_s_own() -> None:
    assert read_secret({}) == b"" and read_secret({VALUE: f" {GOOD}\n"}) == GOOD.encode()


def test_a_file_of_the_user_s(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text(GOOD + "\n")
    for mode in (0o600, 0o400, 0o640):
        path.chmod(mode)
        assert read_secret({FILE: str(path)}) == GOOD.encode()


@pytest.mark.parametrize("case", ["readable", "writable", "short", "folder", "gone", "both", "short value"])
def test_a_secret_that_is_none_is_refused_by_name(case: str, tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_text("short" if case == "short" else GOOD)
    path.chmod({"readable": 0o644, "writable": 0o602}.get(case, 0o600))
    environ = {FILE: str({"folder": tmp_path, "gone": tmp_path / "gone"}.get(case, path))}
    if case == "both":
        environ[VALUE] = GOOD
    if case == "short value":
        environ = {VALUE: "short"}
    with pytest.raises(ConfigError) as caught:
        read_secret(environ)
    assert caught.value.diagnostics[0].code == "launch.store_secret" and GOOD not in str(caught.value)


def test_whoever_goes_without_is_told() -> None:
    quiet = partial(unsigned, allowed=False)
    assert quiet({}, 1, 8, ours=True) is None and quiet({}, 1, 1, ours=False) is None
    assert quiet({VALUE: GOOD}, 4, 8, ours=False) is None
    for nodes, ours, allowed in product((1, 2), (True, False), (True, False)):
        found = unsigned({}, nodes, 8, ours=ours, allowed=allowed)
        assert (found is None) == (nodes == 1 and ours)
        if found is not None:
            assert found.code == "launch.store_unsigned" and FILE in found.hint
            assert (found.severity is Severity.ERROR) == (nodes == 2 and not allowed)


@pytest.mark.parametrize(
    ("nodes", "environ", "said"),
    [(1, {}, ""), (2, {}, "error"), (2, {VALUE: GOOD}, ""), (2, {"allowed": "yes"}, "warning")],
)
def test_the_plan_says_that_nobody_has_named_a_secret(
    nodes: int,
    environ: dict[str, str],
    said: str,
    tiny: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    config = tiny()
    config["launch"] = {"nproc": 2, "nnodes": nodes, "master_addr": "10.0.0.1", "master_port": 29500}
    config["launch"]["allow_unsigned_store"] = "allowed" in environ
    with contextlib.suppress(SystemExit):
        command(["plan", str(write_yaml(tmp_path / "c.yaml", config))])
    told = capsys.readouterr()
    assert ("Plan " in told.out) == (said != "error"), told.err
    assert re.findall(r"(\w+)\[launch.store_unsigned\]", told.err + told.out) == [said] * bool(said)
    assert GOOD not in told.out + told.err


def test_the_plan_refuses_a_secret_that_cannot_be_used(
    tiny: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(FILE, str(tmp_path / "gone"))
    with pytest.raises(SystemExit) as stopped:
        command(["plan", str(write_yaml(tmp_path / "c.yaml", tiny()))])
    assert stopped.value.code == 2 and "launch.store_secret" in capsys.readouterr().err
