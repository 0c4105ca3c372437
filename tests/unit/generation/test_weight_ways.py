"""How weights come to servers: by every way the same answers, and which way it is where a server lacks one.

What the servers say was recorded from vLLM 0.32 (tests/peers/vllm/record.py weights).
"""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from completions_server import Served, handler
from support import ROOT
from test_rollout import PAD, STOP, VOCAB, build, wanted
from test_rollout_servers import learn, listening

from paceline.config.sections.model import ModelSection
from paceline.config.sections.rollout import ServerOptions
from paceline.core.errors import ConfigError
from paceline.generation.engine import RolloutSampling
from paceline.generation.local import LocalEngine
from paceline.models.factory import HFModelFactory
from paceline.models.role_module import RoleModule
from paceline.plan.plan import AdapterSpec, Quantization
from paceline.protocols.rollout import RolloutInterrupted
from paceline.runtime.process_group.world import World
from paceline.training.preflight.weight_ways import SentPolicy, Way, best_way
from paceline.training.rollout import weight_transfer
from paceline.training.rollout.server import RolloutServers

sys.path.insert(0, str(ROOT / "tests/peers/vllm"))
import weights_asked  # noqa: E402

RECORDED = json.loads((ROOT / "tests/peers/vllm/recorded_weights.json").read_text(encoding="utf-8"))
INFO: dict[str, Any] = RECORDED["info"]
GREEDY = RolloutSampling(0.0)
LORA = AdapterSpec(r=4, alpha=8, target_modules=("all-linear",))


def said(**changed: Any) -> dict[str, Any]:
    """What the server says of itself, with other values at dotted paths (``__`` for a dot)."""
    info = deepcopy(INFO)
    for path, value in changed.items():
        *outer, last = path.split("__")
        place = info
        for key in outer:
            place = place[key]
        place[last] = value
    return info


NO_LORA = said(vllm_config__lora_config=None)
NO_TRANSFER = said(vllm_config__weight_transfer_config=None)
NEITHER = said(vllm_config__lora_config=None, vllm_config__weight_transfer_config=None)
FIXED = said(vllm_env__VLLM_ALLOW_RUNTIME_LORA_UPDATING=False)
BY_PICKLES = said(vllm_config__weight_transfer_config={"backend": "ipc"})
OF_CARDS = said(vllm_config__weight_transfer_config={"backend": "nccl"})
FULL, ADAPTER = SentPolicy(None, "cpu"), SentPolicy(LORA, "cpu")
IN_4_BITS = SentPolicy(replace(LORA, quantization=Quantization(4)), "cpu")


def changed(**fields: Any) -> SentPolicy:
    return SentPolicy(replace(LORA, **fields), "cpu")


@pytest.mark.parametrize(
    ("policy", "info", "way", "because"),
    [
        (ADAPTER, INFO, "adapter", ""),
        (FULL, INFO, "transfer", ""),
        (FULL, NO_TRANSFER, "folder", "--weight-transfer-config"),
        (FULL, OF_CARDS, "folder", "its weight transfer is nccl"),
        (SentPolicy(None, "cuda"), BY_PICKLES, "folder", "takes pickles"),
        (SentPolicy(None, "cuda"), OF_CARDS, "transfer", ""),
        (ADAPTER, NO_LORA, "transfer", "--enable-lora --max-lora-rank 4"),
        (ADAPTER, NEITHER, "folder", "--enable-lora"),
        (changed(r=9), INFO, "transfer", "--max-lora-rank 9"),
        (changed(rank_pattern={"q_proj": 64}), INFO, "transfer", "--max-lora-rank 64"),
        (ADAPTER, FIXED, "transfer", "VLLM_ALLOW_RUNTIME_LORA_UPDATING=True"),
        (changed(use_dora=True), INFO, "transfer", "use_dora"),
        (changed(modules_to_save=("lm_head",)), INFO, "transfer", "modules_to_save: lm_head"),
        (changed(bias="all"), INFO, "transfer", "bias: all"),
        (changed(init_lora_weights="pissa"), INFO, "transfer", "init_lora_weights: pissa"),
        (changed(target_parameters=("mlp.experts.down_proj",)), INFO, "transfer", "fused experts"),
        (IN_4_BITS, INFO, "adapter", ""),
        (IN_4_BITS, NO_LORA, "", "--enable-lora"),
    ],
)
def test_auto_takes_the_best_way_and_says_why_not_a_better_one(
    policy: SentPolicy, info: dict[str, Any], way: str, because: str
) -> None:
    found = best_way("auto", policy, {"http://one": INFO, "http://two": info})
    if way:
        assert isinstance(found, Way) and found.name == way and because in found.why
    asked = best_way("adapter", policy, {"http://one": INFO, "http://two": info})
    if way == "adapter":
        assert isinstance(asked, Way)
    else:
        assert isinstance(asked, list) and {d.code for d in asked} == {"rollout.server_unfit"}
    if not way:
        assert isinstance(found, list) and isinstance(asked, list)
        assert "http://two" in asked[0].found and because in asked[0].hint


@contextmanager
def served(
    tmp_path: Path,
    root: RoleModule,
    way: str,
    info: dict[str, Any],
    seconds: float = 30.0,
    scale_out: bool = False,
) -> Iterator[tuple[Served, Any]]:
    """A server of other weights than ``root`` has, and the client that sends them within ``seconds``."""
    model = Served(str(tmp_path / "base"), torch.float32, info)
    model.scale_out = scale_out
    with listening(handler(model)) as url:
        common: dict[str, Any] = {
            "model": "policy",
            "timeout": 30.0,
            "sync_timeout": seconds,
            "api_key_env": None,
        }
        options = [ServerOptions(url=url, weights_dir=str(tmp_path / "weights"), concurrency=4, **common)]
        policy = SentPolicy(None if root.adapter is None else root.adapter.spec, "cpu")
        client = RolloutServers(
            options, World.single(), (STOP,), VOCAB, 60, tmp_path, torch.float32, True, way, policy
        )
        try:
            yield model, client
        finally:
            client.pool.engines[0].server.close()


def with_adapter(tmp_path: Path) -> RoleModule:
    """A model with adapters; its base is at ``base``."""
    plain = build()
    plain.hf.save_pretrained(tmp_path / "base")
    section = ModelSection(name_or_path=str(tmp_path / "base"))
    return HFModelFactory(section, adapter=LORA, master_dtype=torch.float32)().eval()


@pytest.mark.parametrize(
    ("lora", "way"),
    [
        (True, "adapter"),
        (True, "transfer"),
        pytest.param(True, "folder", marks=pytest.mark.full),
        pytest.param(False, "transfer", marks=pytest.mark.full),
        (False, "folder"),
    ],
)
def test_a_server_answers_as_the_own_engine_whatever_way_the_weights_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lora: bool, way: str
) -> None:
    monkeypatch.setattr(weight_transfer, "BUCKET_BYTES", 8192)  # several buckets, and tensors that fill more
    root = with_adapter(tmp_path) if lora else build()
    if not lora:
        root.hf.save_pretrained(tmp_path / "base")
    moved = []
    with served(tmp_path, root, way, INFO, scale_out=way != "folder") as (model, client):
        for _ in range(3):
            client.num_bytes = 0
            as_own_engine(client, root)
            assert model.version == client.pool.engines[0].version == f"{client.run}-{client.sent}"
            moved.append(client.num_bytes)
            learn(root) if not lora else learn_adapter(root)
    assert [note.code for note in client.notes] == ["rollout.weights_way"] and not client.pool.out
    weights = sum(p.numel() * 4 for n, p in root.hf.named_parameters() if ".lora_" not in n)
    adapter = sum(p.numel() * 4 for _, p in root.plain_named_parameters()) if lora else 0
    bare = adapter if way == "adapter" else weights
    assert moved[0] == 3 * moved[1] and moved[1] == moved[2]  # three to measure the noise
    assert bare <= moved[1] <= 1.05 * bare + (8192 if way != "transfer" else 0)  # headers and config.json


def as_own_engine(client: Any, root: RoleModule) -> None:
    """The server's greedy answers are those of the model itself."""
    own = LocalEngine(root.hf, pad_id=PAD, stop_ids=(STOP,), rows=8).generate(wanted(4), GREEDY)
    for one, two in zip(client.open(root).generate(wanted(4), GREEDY), own, strict=True):
        assert one.tokens == two.tokens and one.ended == two.ended
        torch.testing.assert_close(one.logprobs, two.logprobs, rtol=0, atol=1e-4)


def test_a_server_that_was_started_anew_gets_its_adapter_again(tmp_path: Path) -> None:
    root = with_adapter(tmp_path)
    with served(tmp_path, root, "adapter", INFO, scale_out=True) as (model, client):
        client.open(root)
        model.adapters.clear()
        model.version = "default"
        learn_adapter(root)
        as_own_engine(client, root)
        assert not client.pool.out and [note.code for note in client.notes] == ["rollout.weights_way"]


def learn_adapter(root: RoleModule) -> None:
    with torch.no_grad():
        for _, parameter in root.plain_named_parameters():
            parameter.add_(0.02 * torch.randn_like(parameter))


@pytest.mark.parametrize(("scale_out", "said"), [(False, "version another-7"), (True, "tokens 0 to")])
def test_a_server_whose_weights_another_program_changed_is_left_out(
    tmp_path: Path, scale_out: bool, said: str
) -> None:
    """By its version before and after the answers, or by what each answer says of its tokens."""
    root = build()
    root.hf.save_pretrained(tmp_path / "base")
    with served(tmp_path, root, "transfer", INFO, scale_out=scale_out) as (model, client):
        engine = client.open(root)
        complete = model.complete

        def meanwhile(body: dict[str, Any]) -> dict[str, Any]:
            model.version = "another-7"
            return complete(body)

        model.complete = meanwhile  # type: ignore[method-assign]
        with pytest.raises(RolloutInterrupted, match=r"rollout\.server_version") as caught:
            engine.generate(wanted(3), GREEDY)
        assert "another-7" in str(caught.value) and f"{client.run}-3" in str(caught.value)
        assert said in str(caught.value)


def test_an_update_that_breaks_off_is_named_and_the_next_is_whole(tmp_path: Path) -> None:
    root = build()
    root.hf.save_pretrained(tmp_path / "base")
    with served(tmp_path, root, "transfer", INFO, 5.0) as (model, client):
        client.open(root)
        learn(root)
        receive = model.receive
        model.receive = lambda _: model.group_of_nobody  # type: ignore[attr-defined, method-assign]
        with pytest.raises(RolloutInterrupted, match=r"rollout\.server_unreachable"):
            client.open(root)  # the connection is cut in the middle of the second phase
        model.receive = receive  # type: ignore[method-assign]
        as_own_engine(client, root)


def test_the_way_that_is_asked_for_is_refused_where_a_server_lacks_it(tmp_path: Path) -> None:
    root = build()
    root.hf.save_pretrained(tmp_path / "base")
    with (
        pytest.raises(ConfigError, match=r"rollout\.server_unfit") as caught,
        served(tmp_path, root, "transfer", NO_TRANSFER),
    ):
        raise AssertionError("it was taken")
    assert "--weight-transfer-config" in caught.value.diagnostics[0].hint


def test_the_protocol_server_answers_what_vllm_answers(tmp_path: Path) -> None:
    """The requests and the outline of the answers were recorded."""
    torch.manual_seed(0)
    root = build(vocab_size=320)
    root.hf.save_pretrained(tmp_path / "mine")
    weights_asked.write_adapters(tmp_path)
    model = Served(str(tmp_path / "mine"), torch.float32, INFO)
    model.scale_out = True
    with ExitStack() as stack:
        url = stack.enter_context(listening(handler(model, name="mine")))
        for row in RECORDED["answers"]:
            body = weights_asked.in_folder(row["body"], tmp_path)
            status, answer = ask(url, row["method"], row["path"], body)
            outline = weights_asked.in_outline(row["path"], answer)
            assert (status, outline) == (row["status"], row["answer"]), row


def ask(url: str, method: str, path: str, body: Any) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url + path, data, {"Content-Type": "application/json"}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    try:
        return status, json.loads(text)
    except ValueError:
        return status, text
