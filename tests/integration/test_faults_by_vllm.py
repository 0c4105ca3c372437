"""Faults of a real vLLM, injected on the way to it: each is named rightly, and none trains on other weights
for more than one rollout. Clean syncs alarm nobody, in float32 and in bfloat16. ``scripts/test --engines``.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch
from support import ROOT, write_tokenizer

sys.path[:0] = [str(ROOT / path) for path in ("tests/peers/vllm", "tests/peers", "tests/unit/generation")]
import vllm_asked  # noqa: E402
from between import Between, Harm, passing_on, state_of  # noqa: E402
from record import (  # noqa: E402
    TAKES_WEIGHTS,
    VARIABLES,
    free_port,
    interpreter,
    real_vllm,
    vllm_process,
)
from test_rollout import STOP, wanted  # noqa: E402
from test_rollout_servers import learn, listening  # noqa: E402
from test_server_faults import (  # noqa: E402
    AGAIN,
    IN_0,
    OF_REQUESTS,
    OF_WEIGHTS,
    WRONG,
    Trial,
    swapped_experts,
    web,
)
from test_weight_ways import LORA, learn_adapter  # noqa: E402

from paceline.checkpoint.format.safetensors_file import TensorEntry  # noqa: E402
from paceline.config.sections.model import ModelSection  # noqa: E402
from paceline.config.sections.rollout import RolloutOptions, ServerOptions  # noqa: E402
from paceline.generation.engine import RolloutSampling  # noqa: E402
from paceline.generation.local import LocalEngine  # noqa: E402
from paceline.models.factory import HFModelFactory  # noqa: E402
from paceline.models.role_module import RoleModule  # noqa: E402
from paceline.runtime.process_group.world import World  # noqa: E402
from paceline.training.preflight.generation_servers import Needs, check_servers  # noqa: E402
from paceline.training.preflight.weight_ways import SentPolicy  # noqa: E402
from paceline.training.rollout import weight_folder, weight_transfer  # noqa: E402
from paceline.training.rollout.server import RolloutServers  # noqa: E402

pytestmark = [pytest.mark.engines, pytest.mark.peers, pytest.mark.timeout(3600)]
SECONDS, BRIEF = 600.0, 30.0  # for an answer; for one that does not come
VOCAB = 320
CLEAN = 34  # syncs by each of three ways
GREEDY = RolloutSampling(0.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("faults")
    vllm_asked.write_model(made / "mine")
    return made


@pytest.fixture(scope="module")
def url(folder: Path) -> Iterator[str]:
    with real_vllm(folder, folder / "mine", *TAKES_WEIGHTS) as found:
        yield found


def model(folder: Path, lora: bool = False, dtype: torch.dtype = torch.float32) -> RoleModule:
    section = ModelSection(name_or_path=str(folder / "mine"))
    adapter = LORA if lora else None
    return HFModelFactory(section, adapter=adapter, master_dtype=torch.float32, compute_dtype=dtype)().eval()


def reset(url: str, folder: Path) -> None:
    """Give the server its first weights again."""
    body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder / "mine")}}
    assert httpx.post(f"{url}/collective_rpc", json=body, timeout=SECONDS).status_code == 200
    httpx.post(f"{url}/reset_prefix_cache", timeout=SECONDS)


def trial(
    folder: Path, tmp_path: Path, way: str, seconds: float = SECONDS, dtype: torch.dtype = torch.float32
) -> Trial:
    lora = way == "adapter"
    root = model(folder, lora, dtype)
    step = learn_adapter if lora else learn
    return Trial(root, tmp_path / "weights", seconds, dtype, VOCAB, way=way, step=step)


# --- weights


@pytest.mark.parametrize(("harm", "said"), [row for row in OF_WEIGHTS if row[0] is not swapped_experts])
def test_a_fault_of_weights_is_named(harm: Any, said: str, folder: Path, url: str, tmp_path: Path) -> None:
    """Which layer it is depends on the model: here it is enough that a fault of one is not put elsewhere."""
    reset(url, folder)
    mine, between = trial(folder, tmp_path, "folder"), Between(url, state_of(folder / "mine"), harm)
    between.state = {name: between.state[name] for name in mine.root.hf.state_dict()}
    with listening(passing_on(between)) as address:
        mine.run(address, 4)
    assert (AGAIN if harm.__name__ == "one_behind" else WRONG) in mine.codes and not mine.misled, mine
    assert said in mine.text, mine.text


@pytest.mark.parametrize("way", ["transfer", "folder"])
def test_experts_that_vllm_does_not_take_over_are_named(way: str, tmp_path: Path) -> None:
    """vLLM 0.32 packs experts for its kernel on CPUs at the first load only: after a second one it computes
    with other weights, and answers 200. (With --enable-lora it computes experts by Triton alone.)
    """
    model = vllm_asked.write_model(tmp_path / "mine", vllm_asked.EXPERTS)
    with real_vllm(tmp_path, model, *TAKES_WEIGHTS[TAKES_WEIGHTS.index("--weight-transfer-config") :]) as url:
        mine = trial(tmp_path, tmp_path, way)
        mine.run(url, 1)
    assert WRONG in mine.codes and IN_0 in mine.text and not mine.misled, mine


def stale(between: Between, before: dict[str, Any]) -> dict[str, Any]:
    """The adapter of the former step is loaded."""
    return before


def doubled(between: Between, before: dict[str, Any]) -> dict[str, Any]:
    """It acts twice."""
    return {name: 2 * value for name, value in between.state.items() if "lora_B" in name}


@pytest.mark.parametrize("harm", [stale, doubled])
def test_a_fault_of_adapters_is_named(harm: Harm, folder: Path, url: str, tmp_path: Path) -> None:
    reset(url, folder)
    mine, between = trial(folder, tmp_path, "adapter"), Between(url, {}, harm)
    with listening(passing_on(between)) as address:
        mine.run(address, 3)
    assert WRONG in mine.codes and not mine.misled, mine


def exchanged(name: str) -> str:
    for one, two in ((".layers.0.", ".layers.1."), (".layers.1.", ".layers.0.")):
        if one in name:
            return name.replace(one, two)
    return name


def into_one(name: str) -> str:
    """Half an update: a layer gets nothing, another two; vLLM refuses the second."""
    return name.replace(".layers.1.", ".layers.0.")


@pytest.mark.parametrize(
    ("rename", "code", "said"),
    [(exchanged, WRONG, " is in model.layers."), (into_one, "rollout.server_status", "/update_weights")],
)
def test_a_fault_of_a_transfer_is_named(
    rename: Callable[[str], str], code: str, said: str, folder: Path, url: str, tmp_path: Path
) -> None:
    reset(url, folder)
    mine, between = trial(folder, tmp_path, "transfer"), Between(url, {}, rename=rename)
    with listening(passing_on(between)) as address:
        mine.run(address, 3)
    assert code in mine.codes and not mine.misled and said in mine.text, mine


# --- requests, and what others do


@pytest.mark.parametrize(("fault", "code", "said"), OF_REQUESTS)
def test_a_fault_of_requests_is_named(
    fault: Any, code: str, said: str, folder: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reset(url, folder)
    monkeypatch.setattr("test_server_faults.SECONDS", BRIEF)
    mine = trial(folder, tmp_path, "folder", BRIEF)
    with listening(web(passing_on(Between(url, {})), fault)) as address:
        mine.run(address, 2)
    assert code in mine.codes and said in mine.text and mine.misled <= 1, mine


def test_other_weights_after_the_proof_end_the_run(folder: Path, url: str, tmp_path: Path) -> None:
    """The first weights again, under the same version; another trainer's; another version."""
    reset(url, folder)
    mine = trial(folder, tmp_path, "folder")
    rollouts = [0]

    def resets() -> None:
        rollouts[0] += 1
        if rollouts[0] == 2:
            reset(url, folder)

    mine.run(url, 3, resets)
    assert mine.codes[-1] == "rollout.sampling_gap" and mine.misled == 1, mine
    other = trial(folder, tmp_path / "other", "transfer")
    learn(other.root)
    ours, theirs = trial(folder, tmp_path, "transfer"), other.servers(url)
    ours.run(url, 3, lambda: theirs.open(other.root) and None)
    theirs.pool.engines[0].server.close()
    assert ours.codes[-1] == "rollout.server_version" and not ours.misled, ours
    assert "tokens 0 to" in ours.text and theirs.run in ours.text


def test_a_full_disk_is_named(
    folder: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = trial(folder, tmp_path, "folder")

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(weight_folder, "write_weights", full)
    mine.run(url, 1)
    assert "No space left" in mine.text and "weights for the generation server" in mine.text, mine


def test_another_tokenizer_is_known_before_the_start(folder: Path, url: str, tmp_path: Path) -> None:
    write_tokenizer(tmp_path / "same")
    (tmp_path / "other").mkdir()
    changed = json.loads((tmp_path / "same/tokenizer.json").read_text())
    words = changed["model"]["vocab"]
    words["T"], words["U"] = words["U"], words["T"]
    (tmp_path / "other/tokenizer.json").write_text(json.dumps(changed))
    options = RolloutOptions.model_validate({"servers": [url]})
    for name, codes in (("same", []), ("other", ["rollout.server_unfit"])):
        found = check_servers(options, Needs(60, VOCAB, tmp_path / name), {})
        assert [d.code for d in found] == codes, name


# --- clean syncs, and several servers


@pytest.mark.parametrize("way", ["adapter", "transfer", "folder"])
def test_clean_syncs_alarm_nobody(way: str, folder: Path, url: str, tmp_path: Path) -> None:
    reset(url, folder)
    mine, between = trial(folder, tmp_path, way), Between(url, {}, shows_versions=True)
    with listening(passing_on(between)) as address:
        mine.run(address, CLEAN)
    assert not mine.codes and not mine.misled and between.count == CLEAN + 2, mine  # the first is sent thrice
    assert "/inference/v1/generate" in between.asked


def test_clean_syncs_in_bfloat16_alarm_nobody_and_a_stale_layer_is_noticed(
    folder: Path, tmp_path: Path
) -> None:
    stale_layer, _ = OF_WEIGHTS[0]
    with real_vllm(folder, folder / "mine", *TAKES_WEIGHTS, dtype="bfloat16") as url:
        for way in ("transfer", "folder"):
            mine = trial(folder, tmp_path, way, dtype=torch.bfloat16)
            mine.run(url, 10)
            assert not mine.codes and not mine.misled, mine
        mine = trial(folder, tmp_path, "folder", dtype=torch.bfloat16)
        one = mine.step

        def far(root: RoleModule) -> None:
            for _ in range(16):  # one step of one layer is less than the noise of 16 bit
                one(root)

        mine.step = far
        between = Between(url, state_of(folder / "mine"), stale_layer)
        with listening(passing_on(between)) as address:
            mine.run(address, 3)
        assert WRONG in mine.codes and not mine.misled, mine


def test_two_servers_one_of_two_ranks_that_dies_in_a_sync_and_comes_back(
    folder: Path, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_transfer, "BUCKET_BYTES", 65536)
    monkeypatch.setenv("OF_THE_SECOND", "secret")
    port = free_port()
    urls = [url, f"http://127.0.0.1:{port}"]
    more = ("--dtype", "float32", "--tensor-parallel-size", "2", "--api-key", "secret", *TAKES_WEIGHTS)

    def servers(root: RoleModule, way: str) -> RolloutServers:
        common = {"timeout": SECONDS, "sync_timeout": SECONDS, "weights_dir": str(tmp_path / way)}
        options = [
            ServerOptions(url=each, api_key_env=name, **common)
            for each, name in zip(urls, (None, "OF_THE_SECOND"), strict=True)
        ]
        policy = SentPolicy(None if root.adapter is None else root.adapter.spec, "cpu")
        world = World.single()
        return RolloutServers(options, world, (STOP,), VOCAB, 60, tmp_path, torch.float32, True, way, policy)

    with ExitStack() as stack:

        def opened(root: RoleModule, way: str) -> RolloutServers:
            found = servers(root, way)
            for engine in found.pool.engines:
                stack.callback(engine.server.close)
            found.open(root)
            as_the_model(found, root)
            assert not found.pool.out and [n.code for n in found.take_notes()] == ["rollout.weights_way"]
            return found

        with vllm_process(folder, folder / "mine", port, *more) as process:
            reset(url, folder)
            adapted = model(folder, lora=True)
            learn_adapter(adapted)
            opened(adapted, "adapter")
            root = model(folder)
            opened(root, "folder")
            pool = opened(root, "transfer")
            learn(root)
            second = pool.pool.engines[1].server
            post = second.post_once

            def dies(path: str, *more: Any) -> None:
                if path == "/update_weights":
                    os.killpg(process.pid, signal.SIGKILL)
                post(path, *more)

            monkeypatch.setattr(second, "post_once", dies)
            pool.open(root)
            assert list(pool.pool.out) == [1]
            assert [n.code for n in pool.take_notes()] == ["rollout.server_left_out"]
            as_the_model(pool, root)
            monkeypatch.undo()
        learn(root)
        with vllm_process(folder, folder / "mine", port, *more):
            pool.open(root)
            notes = pool.take_notes()
            assert [n.code for n in notes] == ["rollout.server_back"] and not pool.pool.out, "\n".join(
                n.render() for n in notes
            )
            as_the_model(pool, root)


def as_the_model(servers: RolloutServers, root: RoleModule) -> None:
    """Each server in use answers as the model itself."""
    own = LocalEngine(root.hf, pad_id=0, stop_ids=(STOP,), rows=8).generate(wanted(4), GREEDY)
    for place in servers.pool.live():
        engine = servers.pool.engines[place]
        for request, mine in zip(wanted(4), own, strict=True):
            found = engine.answer(request, GREEDY)
            assert found.tokens == mine.tokens and found.ended == mine.ended
            torch.testing.assert_close(found.logprobs, mine.logprobs, rtol=0, atol=1e-4)


def test_vllm_reads_what_is_sent_to_its_own_engine_nccl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its classes and its consumer, with stand-ins for card and group: the protocol alone."""
    monkeypatch.setattr(weight_transfer, "BUCKET_BYTES", 300)
    monkeypatch.setattr(weight_transfer, "bindings", lambda: SimpleNamespace(unique_id=lambda: bytes(128)))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cuda"))
    tensors = {"a": torch.randn(5, 7), "b": torch.randn(3), "c": torch.randn(11, 13), "d": torch.randn(25, 3)}
    entries = [TensorEntry(n, t.dtype, tuple(t.shape), lambda t=t: t) for n, t in tensors.items()]
    sent = [
        {"content": bucket.content, "data": bytes(bucket.data.tolist()).hex()}
        for bucket in weight_transfer.buckets(entries, 300, torch.device("cpu"))
    ]
    assert len(sent) == 3  # two together, one that is larger than a bucket, one that fills it
    init = {"rank_offset": 1, "world_size": 2, **weight_transfer.nccl()[1]}
    program = ROOT / "tests/peers/inside/vllm_nccl.py"
    done = subprocess.run(
        [interpreter(), str(program)],
        input=json.dumps({"init": init, "buckets": sent}),
        env={**os.environ, **VARIABLES},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = [[n, list(t.shape), t.flatten().tolist()] for n, t in tensors.items()]
    assert json.loads(done.stdout.splitlines()[-1]) == expected
