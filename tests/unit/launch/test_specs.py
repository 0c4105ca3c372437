"""Commands and environments, pure."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import paceline
from paceline.config.load import load_config
from paceline.core.errors import ConfigError
from paceline.launch import network
from paceline.launch.launchers import accelerate_argv, deepspeed_argv, launcher_for
from paceline.launch.network import (
    check_cluster,
    free_port,
    gloo_interface,
    interface_to,
    next_free_port,
    port_is_free,
    resolve_port,
)
from paceline.launch.process_spec import (
    Cluster,
    LaunchSpec,
    import_path,
    malloc_settings,
    thread_count,
    worker_argv,
)
from paceline.launch.start_run import make_specs

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "launch.txt"
WORKER = worker_argv("--plan", "outputs/my run/plan.json", python="python")
HERE = {"PYTHONPATH": str(Path(next(iter(paceline.__path__))).resolve().parent)}


def lines(name: str, cluster: Cluster) -> list[str]:
    return [
        spec.shell_line()
        for spec in make_specs(name, WORKER, cluster, environ={**HERE, "GLOO_SOCKET_IFNAME": "eth0"}, cores=8)
    ]


def test_commands_are_the_golden_ones() -> None:
    """To renew the file on purpose: write ``text`` to it and read the difference."""
    two = Cluster(2, master_port=29511)
    node = Cluster(4, 2, 1, "10.0.0.1", 29500)
    text = "\n".join(
        [
            "# one process",
            *lines("single", Cluster()),
            "# two processes",
            *lines("spawn", two),
            "# node 1 of two, four processes each",
            *lines("spawn", node),
            "# torchrun, two processes",
            *lines("torchrun", two),
            "# torchrun, node 1 of two",
            *lines("torchrun", node),
            "# accelerate",
            LaunchSpec(
                accelerate_argv(["main.py", "--config", "config.yaml"], two, use_cpu=True)
            ).shell_line(),
            LaunchSpec(
                accelerate_argv(["main.py", "--config", "config.yaml"], node, use_cpu=False)
            ).shell_line(),
            "# deepspeed",
            LaunchSpec(deepspeed_argv(["main.py", "--config", "config.yaml"], two)).shell_line(),
            LaunchSpec(
                deepspeed_argv(["main.py", "--config", "config.yaml"], node, hostfile="hosts")
            ).shell_line(),
            LaunchSpec(
                deepspeed_argv(["main.py", "--config", "config.yaml"], node, hostfile="hosts", ssh=True)
            ).shell_line(),
            "",
        ]
    )
    assert text == GOLDEN.read_text(encoding="utf-8")


def test_ranks_count_on_over_nodes() -> None:
    specs = [
        s
        for node in (0, 1)
        for s in make_specs("spawn", WORKER, Cluster(2, 2, node, "127.0.0.1", 29500), environ=HERE, cores=2)
    ]
    assert [s.env_additions["RANK"] for s in specs] == ["0", "1", "2", "3"] == [str(s.rank) for s in specs]
    assert [s.env_additions["LOCAL_RANK"] for s in specs] == ["0", "1", "0", "1"]
    assert {s.env_additions["WORLD_SIZE"] for s in specs} == {"4"}


def test_the_launcher_s_name() -> None:
    assert (
        launcher_for(Cluster()) == "single"
        and launcher_for(Cluster(2)) == "spawn"
        and launcher_for(Cluster(1, 2)) == "spawn"
    )
    assert launcher_for(Cluster(), "torchrun") == "torchrun"
    with pytest.raises(ConfigError, match="did you mean 'torchrun'"):
        launcher_for(Cluster(), "torch-run")


def test_threads_are_shared_out_unless_somebody_said_how() -> None:
    assert thread_count({}, 8, 2) == {"OMP_NUM_THREADS": "4"}
    assert thread_count({}, 2, 4) == {"OMP_NUM_THREADS": "1"}
    assert thread_count({"OMP_NUM_THREADS": "3"}, 8, 2) == {} == thread_count({}, 8, 1)


def test_a_checkout_is_found_by_its_children() -> None:
    root = HERE["PYTHONPATH"]
    assert import_path({}) == {"PYTHONPATH": root}
    assert import_path({"PYTHONPATH": "/a:/b"}) == {"PYTHONPATH": f"{root}:/a:/b"}
    assert import_path({"PYTHONPATH": f"/a:{root}"}) == {}


@pytest.mark.parametrize(
    ("cluster", "code"),
    [
        (Cluster(0), "launch.count"),
        (Cluster(1, 0), "launch.count"),
        (Cluster(1, 2, 2), "launch.node_rank"),
        (Cluster(1, 1, -1), "launch.node_rank"),
    ],
)
def test_impossible_numbers_are_refused(cluster: Cluster, code: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_cluster(cluster)
    assert caught.value.diagnostics[0].code == code


def test_a_port_in_use_is_named_with_the_next_free_one() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert not port_is_free(port)
        with pytest.raises(ConfigError) as caught:
            resolve_port(Cluster(2, master_port=port))
        found = caught.value.diagnostics[0]
        assert found.code == "launch.port_in_use" and f"--master_port {next_free_port(port)}" in found.hint
        assert resolve_port(Cluster(2, 2, 1, master_port=port)).master_port == port  # node 1 does not listen
    assert port_is_free(port)


def test_a_port_outside_the_range_is_refused_once(tmp_path: Path) -> None:
    for port in (-1, 65536, 70000):
        file = tmp_path / "c.yaml"
        file.write_text(
            f"{{model: {{name_or_path: m}}, data: {{train: t}}, launch: {{master_port: {port}}}}}"
        )
        with pytest.raises(ConfigError) as caught:
            load_config(str(file))
        (found,) = caught.value.diagnostics
        assert found.code == "config.value" and str(file) in found.where and str(port) in found.found


def test_no_port_means_a_free_one_on_one_node_and_the_usual_one_on_several() -> None:
    port = resolve_port(Cluster(2)).master_port
    assert port is not None and port_is_free(port)
    assert resolve_port(Cluster(2, 2, 1)).master_port == network.DEFAULT_PORT
    assert free_port() > 1023


def test_gloo_gets_the_interface_that_reaches_node_0() -> None:
    assert interface_to("127.0.0.1") == "lo"
    assert interface_to("no.such.host.invalid") is None
    two = Cluster(1, 2, 0, "127.0.0.1", 29500)
    assert gloo_interface(two, {}) == {"GLOO_SOCKET_IFNAME": "lo"}
    assert gloo_interface(two, {"GLOO_SOCKET_IFNAME": "eth0"}) == {} == gloo_interface(Cluster(2), {})


def test_deepspeed_needs_a_hostfile_for_several_nodes() -> None:
    with pytest.raises(ConfigError, match="slots=PROCESSES"):
        deepspeed_argv(["main.py"], Cluster(4, 2))


def test_settings_reach_every_process_and_a_user_s_own_stay() -> None:
    assert malloc_settings({}) == {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0"}
    given = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    assert malloc_settings(given) == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=0"}
    assert malloc_settings({"GLIBC_TUNABLES": "glibc.malloc.tcache_count=7"}) == {}
    cluster = Cluster(nproc=2, master_port=29511)
    for launcher in ("spawn", "torchrun"):
        specs = make_specs(launcher, WORKER, cluster, environ={}, cores=8, settings={"A": "1"})
        assert all(
            spec.env_additions["A"] == "1" and "OMP_NUM_THREADS" in spec.env_additions for spec in specs
        )


def test_port_0_is_any_free_one() -> None:
    chosen = resolve_port(Cluster(2, master_port=0)).master_port
    assert chosen is not None and chosen > 0


def test_launchers_of_others_start_the_same_worker_on_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: f"/usr/bin/{name}")
    cluster = Cluster(2, master_port=29511, on_cpu=True)
    told = {}
    for name in ("mpirun", "accelerate", "deepspeed"):
        (spec,) = make_specs(name, WORKER, cluster, environ=HERE, cores=8)
        assert spec.rank is None and spec.ranks == 2 and spec.env_additions["OMP_NUM_THREADS"] == "4"
        assert spec.argv[-len(WORKER) + 2 :] == WORKER[2:], "the module and its arguments, whole"
        told[name] = " ".join(spec.argv)
    assert (
        "-np 2 --bind-to none" in told["mpirun"]
        and "--multi_gpu" in told["accelerate"]
        and "--cpu" not in told["accelerate"]
    )
    assert "--num_gpus=2 --master_port=29511 --module" in told["deepspeed"]


@pytest.mark.parametrize("name", ["mpirun", "accelerate", "deepspeed"])
def test_several_nodes_are_left_to_a_launcher_s_own_command(name: str) -> None:
    with pytest.raises(ConfigError, match=r"launch\.one_node") as caught:
        make_specs(name, WORKER, Cluster(2, 2, 0, "10.0.0.1", 29500), environ=HERE, cores=2)
    assert "main.py --config" in caught.value.diagnostics[0].hint


def test_a_launcher_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path=None: None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for name in ("mpirun", "accelerate", "deepspeed"):
        with pytest.raises(ConfigError, match=r"launch\.not_installed"):
            make_specs(name, WORKER, Cluster(2), environ=HERE, cores=2)
