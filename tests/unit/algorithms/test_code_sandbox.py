"""The sandbox of programs that a model wrote: no attack on the machine gets through, as root and as an
ordinary user, and where there is no sandbox nothing runs."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from code_attacks import ATTACKS, attack, fingerprint, plant
from support import ROOT

from paceline.algorithms.rewards.code_reward import check_isolation
from paceline.algorithms.rewards.sandbox import client, isolation, seccomp, syscalls
from paceline.algorithms.rewards.sandbox.client import Sandbox, SandboxUnavailable, readable_folders
from paceline.core.errors import ConfigError

OTHER_USER = 12345
LIMITS = {"seconds": 2, "memory_bytes": 512 << 20}


@pytest.fixture(autouse=True, scope="module")
def can_be_shut_in() -> None:
    try:
        check_isolation()
    except ConfigError as error:
        pytest.skip(f"no sandbox here: {error.diagnostics[0].found}")


@pytest.fixture(scope="module")
def listener() -> Iterator[tuple[int, str]]:
    """A port of this machine and an abstract socket that answer."""
    abstract = f"paceline-test-{os.getpid()}"
    with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as local:
        local.bind(f"\0{abstract}")
        local.listen()
        yield server.getsockname()[1], abstract


@pytest.mark.parametrize("parent", ["/tmp", "/dev/shm"])
def test_a_python_that_lies_below_the_program_s_own_folders_is_read_and_not_written(
    parent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        os.chmod(folder, 0o755)
        inner = Path(folder) / "venv" / "lib"
        inner.mkdir(parents=True)
        (inner / "there.py").write_text("X = 7\n")
        (Path(folder) / "secret").write_text("not to be seen")
        monkeypatch.setattr(client, "readable_folders", lambda: [*readable_folders(), str(inner)])
        program = (
            f"import os, sys\nsys.path.append({str(inner)!r})\nimport there\nprint(there.X,"
            f" os.path.exists({folder + '/secret'!r}))\nfor act in (lambda: open({str(inner / 'there.py')!r},"
            f" 'a'), lambda: open({str(inner / 'new')!r}, 'w'), lambda:"
            f" os.unlink({str(inner / 'there.py')!r})):\n    try: act(); print('written')\n    except OSError"
            f" as e: print(e.errno in (13, 30))\nopen({parent + '/own'!r}, 'w').write('x')\nprint('own')"
        )
        with Sandbox() as sandbox:
            for _ in range(2):  # each program has its own folders
                ended = sandbox.output(program, "", seconds=20, memory_bytes=512 << 20)
                assert ended.output.split() == ["7", "False", "True", "True", "True", "own"]
        assert sorted(os.listdir(inner)) == ["there.py"] and (inner / "there.py").read_text() == "X = 7\n"


def test_no_attack_gets_through(
    tmp_path: Path, listener: tuple[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(ATTACKS) >= 80
    monkeypatch.setenv("A_TOKEN", "of-this-user")
    plant(tmp_path)
    before, others = fingerprint(tmp_path), set(os.listdir(tempfile.gettempdir()))
    with subprocess.Popen(["sleep", "100"]) as bystander, socket.socket(socket.AF_UNIX) as beside:
        beside.bind(str(tmp_path / "canary" / "socket"))
        before = fingerprint(tmp_path)
        said = attack(tmp_path, bystander.pid, *listener, list(ATTACKS))
        alive = bystander.poll() is None
        bystander.kill()
    assert said == {} and alive
    assert fingerprint(tmp_path) == before
    left = {
        name for name in set(os.listdir(tempfile.gettempdir())) - others if name.startswith("paceline-code-")
    }
    assert not left, "the sandbox has left files behind"


def test_no_attack_of_another_user_gets_through(listener: tuple[int, str]) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can start processes of another user")
    python = _python_for(OTHER_USER)
    folder = Path(tempfile.mkdtemp(prefix="paceline-attacks-"))
    try:
        os.chown(folder, OTHER_USER, OTHER_USER)
        script = Path(__file__).with_name("code_attacks.py")
        # the bystander is of the same user: what the program may signal outside of a sandbox
        with subprocess.Popen(
            ["sleep", "100"], user=OTHER_USER, group=OTHER_USER, extra_groups=[]
        ) as bystander:
            argv = [python, "-s", str(script), str(folder), str(bystander.pid), str(listener[0]), listener[1]]
            env = {
                "PYTHONPATH": str(ROOT),
                "HOME": str(folder),
                "A_TOKEN": "x",
                "PYTHONDONTWRITEBYTECODE": "1",
            }
            done = subprocess.run(
                argv,
                user=OTHER_USER,
                group=OTHER_USER,
                extra_groups=[],
                env=env,
                cwd="/",
                capture_output=True,
                text=True,
                timeout=200,
            )
            alive = bystander.poll() is None
            bystander.kill()
    finally:
        shutil.rmtree(folder)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"uid": OTHER_USER, "said": {}, "unchanged": True} and alive


def _python_for(uid: int) -> str:
    """A Python that another user may run, with this checkout at hand."""
    for python in (sys.executable, "/usr/bin/python3", "/usr/local/bin/python3"):
        words = (
            "import sys; sys.path.insert(0, sys.argv[1]); assert sys.version_info >= (3, 11); import paceline"
        )
        try:
            if not subprocess.run(
                [python, "-c", words, str(ROOT)],
                user=uid,
                group=uid,
                extra_groups=[],
                cwd="/",
                capture_output=True,
            ).returncode:
                return python
        except OSError:
            continue
    pytest.skip("no Python of 3.11 that another user may run")


WITHOUT_NAMESPACES = f"""
import os, sys
sys.path.insert(0, {str(ROOT)!r})
from paceline.algorithms.rewards.sandbox import isolation, syscalls
from paceline.algorithms.rewards.code_reward import CodeReward, check_isolation
from paceline.algorithms.rewards.builtin import Sample
from paceline.core.errors import ConfigError
own = os.geteuid(), os.getegid()
syscalls.unshare("user")
for kind, number in zip(("uid", "gid"), own):
    if kind == "gid": open("/proc/self/setgroups", "w").write("deny")
    open(f"/proc/self/{{kind}}_map", "w").write(f"0 {{number}} 1")
open("/proc/sys/user/max_user_namespaces", "w").write("0")
try:
    check_isolation()
except ConfigError as error:
    print(error.diagnostics[0].code, error.diagnostics[0].found)
reward = CodeReward(True, seconds=1)
said = {{name: reward([Sample("", program, {{"tests": "assert f(2) == 4"}})])[0] for name, program in eval(sys.argv[1]).items()}}
print(said)
"""  # noqa: E501


def test_without_namespaces_nothing_runs_unless_it_is_allowed_to(tmp_path: Path) -> None:
    canary = plant(tmp_path)
    programs = {
        "honest": "def f(x): return x * x",
        "wrong": "def f(x): return x",
        "exits": "raise SystemExit(0)",
        "overwrites": f"open('{canary}/secret', 'w')\ndef f(x): return 4",
        "deletes": f"import os; os.unlink('{canary}/secret')\ndef f(x): return 4",
        "chmods": f"import os; os.chmod('{canary}/secret', 0o777)\ndef f(x): return 4",
        "reads": f"open('{canary}/secret').read()\ndef f(x): return 4",
        "connects": "import socket; socket.socket()\ndef f(x): return 4",
        "forks": "import os; os.fork()\ndef f(x): return 4",
        "kills": f"import os; os.kill({os.getpid()}, 0)\ndef f(x): return 4",
        "writes": "open('x', 'w')\ndef f(x): return 4",
        "hangs": "while True: pass",
    }
    before = fingerprint(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_NAMESPACES, repr(programs)],
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    assert not list(Path(tempfile.gettempdir()).glob("paceline-code-*")), "a folder was left behind"
    refused, said = done.stdout.splitlines()
    assert refused.startswith("rewards.no_isolation") and "unshare" in refused
    scores = json.loads(said.replace("'", '"'))
    if isolation.version():  # what is left of the walls where namespaces were given up
        assert scores == {**dict.fromkeys(programs, 0.0), "honest": 1.0}
        assert fingerprint(tmp_path) == before
    else:
        assert scores["honest"] == 1.0 and scores["exits"] == scores["wrong"] == scores["hangs"] == 0.0


def test_a_private_umask_of_the_process_that_trains_does_not_matter() -> None:
    before = os.umask(0o077)
    try:
        check_isolation()
    finally:
        os.umask(before)


def test_root_who_is_alone_in_a_container_gets_a_sandbox_too() -> None:
    words = (
        WITHOUT_NAMESPACES.partition('open("/proc/sys/user')[0]
        + "check_isolation()\nprint(os.getuid(), 'works')"
    )
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, timeout=100)
    assert done.stdout == "0 works\n", done.stderr


def test_many_at_once_and_one_after_the_other_share_nothing() -> None:
    # a venv that lies there is on the way to it
    python = {path.split("/")[2] for path in readable_folders() if path.startswith("/tmp/")}
    program = (
        f"import os\nn = int(input())\nprint(sorted(set(os.listdir('/tmp')) - {python or set()}),"
        " os.listdir('/dev/shm'), os.getpid())\nopen('/tmp/a', 'w'); open('/dev/shm/b', 'w')\nprint(n)"
    )

    def some(number: int) -> list[str]:
        with Sandbox() as sandbox:
            return [sandbox.output(program, str(number + i), **LIMITS).output for i in range(5)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(some, range(0, 40, 10)))
    assert found == [[f"[] [] 1\n{number + i}\n" for i in range(5)] for number in range(0, 40, 10)]


@pytest.mark.parametrize("sends", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_the_process_that_trains(sends: int) -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\nimport threading, subprocess\nfrom"
        " paceline.algorithms.rewards.sandbox import client\nclass P(subprocess.Popen):\n    def"
        " __init__(self, *a, **k):\n        super().__init__(*a, **k)\n        print(self.pid,"
        " flush=True)\nclient.subprocess.Popen = P\ns = client.Sandbox()\nprint('up',"
        " flush=True)\ns.output('import time; time.sleep(60)', '', seconds=50, memory_bytes=512 << 20)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as trainer:
        assert trainer.stdout is not None
        server = int(trainer.stdout.readline())
        assert trainer.stdout.readline() == "up\n"
        family = _family(server)
        _until(lambda: len(_family(server)) >= 4, "the program has not started")
        family = _family(server)
        trainer.send_signal(sends)
        trainer.wait()
    _until(lambda: not [pid for pid in family if _alive(pid)], f"{family} are still there")


def _until(true: object, words: str) -> None:
    for _ in range(400):
        if true():  # type: ignore[operator]
            return
        time.sleep(0.05)
    pytest.fail(words)


def _alive(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _family(pid: int) -> list[int]:
    """A process and all that descend from it."""
    try:
        tasks = (Path("/proc") / str(pid) / "task" / str(pid) / "children").read_text().split()
    except OSError:
        return []
    return [pid, *(each for child in tasks for each in _family(int(child)))]


def test_a_lost_server_is_started_again() -> None:
    from paceline.algorithms.rewards.builtin import Sample
    from paceline.algorithms.rewards.code_reward import CodeReward

    reward = CodeReward(seconds=60)
    sample = Sample("", "def f(x): return x", {"tests": "assert f(1) == 1"})
    lost = reward._free.get()
    lost._peer.close()
    reward._free.put(lost)
    assert reward([sample]) == [1.0]
    reward.close()
    with pytest.raises(SandboxUnavailable):
        lost.passes("", "", **LIMITS)


def test_answers_are_judged_side_by_side_and_each_gets_its_own_verdict() -> None:
    from paceline.algorithms.rewards.builtin import Sample
    from paceline.algorithms.rewards.code_reward import CodeReward

    reward = CodeReward(False, 4, seconds=60)
    tests = "assert f(1) == {0}\nassert f(2) == {0}"
    samples = [
        Sample("", f"def f(x): return {i}", {"tests": tests.format(i if i % 3 else -1)}) for i in range(24)
    ]
    assert reward(samples) == [float(i % 3 > 0) for i in range(24)]
    assert 1 <= reward._free.qsize() <= 4
    with pytest.raises(KeyError):
        reward([*samples, Sample("", "x", {})])
    assert reward(samples[:2]) == [0.0, 1.0]
    reward.close()


def test_what_may_be_read_is_a_short_list() -> None:
    """Neither a home nor the checkout nor /etc: what programs see is the system and Python's own
    libraries.
    """
    folders = readable_folders()
    assert not {"/", "/etc", "/home", "/root", "/tmp", "/var", str(Path.home()), str(ROOT)} & set(folders)
    assert not [f for f in folders if str(ROOT).startswith(f + "/")]


def test_numbers_of_system_calls_are_those_of_libseccomp() -> None:
    """A wrong number would refuse another call and let this one through."""
    import ctypes

    try:
        resolve = ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name_arch
    except OSError:
        pytest.skip("no libseccomp to compare with")
    tables = {
        **seccomp.REFUSED,
        **seccomp.REFUSED_OUTSIDE,
        **seccomp.ABOUT_SELF,
        "socket": seccomp.SOCKET,
        "clone": seccomp.CLONE,
        "clone3": seccomp.CLONE3,
    }
    tables |= {"pivot_root": tuple(syscalls.PIVOT_ROOT.values()), "capset": tuple(syscalls.CAPSET.values())}
    for column, arch in (0, 0xC000003E), (1, 0xC00000B7):
        for name, numbers in tables.items():
            known = resolve(ctypes.c_uint32(arch), name.encode())
            assert numbers[column] == (known if known >= 0 else -1), (name, arch)
