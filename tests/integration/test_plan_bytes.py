"""Model states that the plan foretells are the bytes of real tensors, rank by rank, to the byte, under
every strategy.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ranks import run_ranks

from paceline.config.registries.optimizers import BUILT

FULL = {"fsdp": "full_shard"}


def _t(**training: Any) -> dict[str, Any]:
    return {"training": training}


def _zero(stage: int, **block: Any) -> dict[str, Any]:
    return {"deepspeed": {"zero_optimization": {"stage": stage, **block}}}


LORA = {"lora": {"r": 3}}
QLORA = {"lora": {"r": 3, "quantization_bit": 4}}
SINGLY = {"lora": {**QLORA["lora"], "double_quant": False}}
TWO: dict[str, dict[str, Any]] = {
    "ddp": _t(distributed_strategy="ddp", optim="sgd", optim_args="momentum=0.9"),
    "ddp lora bf16": {**_t(distributed_strategy="ddp", bf16=True), **LORA},
    "ddp qlora": {**_t(distributed_strategy="ddp"), **QLORA},
    "zero_redundancy": _t(distributed_strategy="zero_redundancy", optim="sgd", optim_args="momentum=0.9"),
    "zero_redundancy lora bf16": {
        **_t(distributed_strategy="zero_redundancy", bf16=True, parameters_as_bucket_view=True),
        **LORA,
    },
    "fsdp qlora": {**_t(**FULL), **SINGLY},
    "tp lora": {**_t(parallelism={"tp_size": 2}), **LORA},
    "shard_grad_op": _t(fsdp="shard_grad_op", optim="rmsprop"),
    "no_shard": _t(fsdp="no_shard"),
    "offload": _t(fsdp="full_shard offload"),
    "pp": {"model": {"tie_word_embeddings": True}, **_t(parallelism={"pp_size": 2}, bf16=True)},
    "zero0 bf16": _t(bf16=True, **_zero(0)),
    "zero1": _t(distributed_strategy="zero1"),
    "zero1 bf16": _t(distributed_strategy="zero1", bf16=True),
    "zero2 lora": {**_t(distributed_strategy="zero2", bf16=True), **LORA},
    "zero3 bf16": _t(bf16=True, **_zero(3, stage3_param_persistence_threshold=0)),
}
WIDE = {"model": {"hidden_size": 120, "intermediate_size": 256}}
TWO |= {
    "ddp bnb 8 bit": {**WIDE, **_t(distributed_strategy="ddp", optim="adamw_bnb_8bit")},
    "fsdp bnb 8 bit bf16": {**WIDE, **_t(optim="adamw_8bit", bf16=True, **FULL)},
    "zero_redundancy lion 8 bit": {**WIDE, **_t(distributed_strategy="zero_redundancy", optim="lion_8bit")},
    "fsdp lion": _t(optim="lion_32bit", **FULL),
    "zero2 lion": _t(optim="lion_32bit", distributed_strategy="zero2"),
    "zero3 lion": _t(optim="lion_32bit", distributed_strategy="zero3"),
    "fsdp torchao 8 bit": {**WIDE, **_t(optim="adamw_torch_8bit", optim_args="block_size=64", **FULL)},
    "fsdp muon": _t(optim="muon", **FULL),
    "zero_redundancy muon": _t(optim="muon", distributed_strategy="zero_redundancy"),
    "fsdp schedule free bf16": _t(
        optim="schedule_free_adamw", lr_scheduler_type="constant", bf16=True, **FULL
    ),
    "ddp torchao 4 bit": {**WIDE, **_t(distributed_strategy="ddp", optim="adamw_torch_4bit")},
    "ddp frozen bf16": _t(distributed_strategy="ddp", bf16=True, freeze="embed_tokens, layers.0"),
    "fsdp frozen bf16": _t(bf16=True, unfreeze=["layers[-1:].mlp", "lm_head"], **FULL),
    "zero2 frozen": _t(distributed_strategy="zero2", freeze="embed_tokens, layers.0"),
    "zero3 frozen": _t(distributed_strategy="zero3", unfreeze="layers[1:]"),
    "autotp lora": {  # the last: DeepSpeed starts no other engine in its process
        **_t(deepspeed={"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 2}}),
        **LORA,
    },
}
FOUR: dict[str, dict[str, Any]] = {
    "full_shard bf16": _t(bf16=True, **FULL),
    "full_shard lora": {**_t(**FULL), **LORA},
    "zero_redundancy": _t(distributed_strategy="zero_redundancy"),
    "hybrid": _t(fsdp="hybrid_shard", parallelism={"dp_shard_size": 2, "dp_replicate_size": 2}),
    "cp": _t(parallelism={"dp_shard_size": 2, "cp_size": 2}),
    "tp sp": {"model": {"vocab_size": 14}, **_t(parallelism={"tp_size": 2, "sequence_parallel": True})},
    "tp sp lora": {**_t(parallelism={"tp_size": 2, "sequence_parallel": True}), **LORA},
    "pp interleaved": {
        "model": {"num_hidden_layers": 5},
        **_t(parallelism={"pp_size": 2, "pp_schedule": "interleaved"}),
    },
    "pp tp": _t(parallelism={"pp_size": 2, "tp_size": 2}),
    "zero2": _t(distributed_strategy="zero2"),
    "zero2 offload": _t(**_zero(2, offload_optimizer={"device": "cpu"})),
    "zero3": _t(**_zero(3, stage3_param_persistence_threshold=1000)),
    "autotp": _t(deepspeed={"zero_optimization": {"stage": 1}, "tensor_parallel": {"autotp_size": 2}}),
}


#: of an engine and an optimizer that another case has too
MORE = (
    "zero_redundancy lora bf16",
    "no_shard",
    "zero0 bf16",
    "zero1",
    "ddp bnb 8 bit",
    "zero_redundancy lion 8 bit",
    "fsdp lion",
    "zero2 lion",
    "fsdp torchao 8 bit",
    "ddp lora bf16",
    "offload",
    "zero1 bf16",
    "fsdp schedule free bf16",
    "ddp frozen bf16",
    "zero2 frozen",
)
SOME = {name: case for name, case in TWO.items() if name not in MORE}


def has_package(case: dict[str, Any]) -> bool:
    known = BUILT.get(case["training"].get("optim", ""))
    return known is None or not known.package or find_spec(known.package) is not None


@pytest.mark.parametrize(
    ("world_size", "cases"),
    [
        (2, SOME),
        pytest.param(2, TWO, marks=pytest.mark.full),
        pytest.param(4, FOUR, marks=pytest.mark.slow),
    ],
    ids=["2", "2, all", "4"],
)
def test_the_plan_s_bytes_are_those_of_the_tensors(
    world_size: int, cases: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    if find_spec("bitsandbytes") is None:
        cases = {name: case for name, case in cases.items() if "quantization_bit" not in case.get("lora", {})}
    cases = {name: case for name, case in cases.items() if has_package(case)}
    (tmp_path / "cases.json").write_text(json.dumps(cases))
    worker = Path(__file__).with_name("memory_worker.py")
    codes, output = run_ranks("all", world_size, tmp_path, script=worker)
    assert codes == [0] * world_size, output[0][-3000:]
    for rank in range(world_size):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        assert found.keys() == cases.keys()
        for name, case in found.items():
            assert case["measured"] == case["planned"], f"{name}, rank {rank}"
            # an engine may have freed its gradients when it is asked
            for part, count in case["told"].items():
                assert count == case["planned"][part] or (part == "gradients" and count == 0), (
                    f"{name}: state_bytes"
                )
