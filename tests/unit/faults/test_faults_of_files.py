"""Faults of folders and files that a config names: each is found by ``plan``, before anything heavy is
imported.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fault_jobs import Job, write_safetensors

from paceline.config.schema import field_of
from paceline.core.errors import ConfigError
from paceline.data.chat_template import template_texts
from paceline.launch.preflight.load_config import load
from paceline.launch.preflight.plan_job import planned
from paceline.plan.model.files.folder_check import check_adapter_base

Fault = Callable[[Job], dict[str, Any] | None]


def cut(path: Path, by: int = 40) -> None:
    path.write_bytes(path.read_bytes()[:-by])


def _config_missing(job: Job) -> None:
    (job.model / "config.json").unlink()


def _config_cut(job: Job) -> None:
    cut(job.model / "config.json")


def _config_list(job: Job) -> None:
    (job.model / "config.json").write_text("[1, 2]")


def _weights_empty(job: Job) -> None:
    (job.model / "model.safetensors").write_bytes(b"")


def _weights_cut(job: Job) -> None:
    cut(job.model / "model.safetensors", 3)


def _weights_html(job: Job) -> None:
    (job.model / "model.safetensors").write_text("<html>404</html>" * 9)


def _weights_none(job: Job) -> None:
    (job.model / "model.safetensors").unlink()


def _pickles(job: Job) -> None:
    (job.model / "model.safetensors").rename(job.model / "pytorch_model.bin")


def _shards(job: Job) -> None:
    (job.model / "model.safetensors").unlink()
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    write_safetensors(job.model / names[0])
    (job.model / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": names[0], "b": names[1]}})
    )


def _index_cut(job: Job) -> None:
    _shards(job)
    cut(job.model / "model.safetensors.index.json")


def _adapter_as_model(job: Job) -> None:
    (job.model / "config.json").unlink()
    (job.model / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/no/base"}))


def _run_as(key: str) -> Callable[[Job], dict[str, Any]]:
    def change(job: Job) -> dict[str, Any]:
        checkpoint = job.root / "earlier/checkpoints/step-00000002"
        checkpoint.mkdir(parents=True)
        for file in (checkpoint / "manifest.json", job.root / "earlier/plan.json"):
            file.write_text("{}")
        (job.root / "earlier/config.json").write_text("{}")
        return {key: str(job.root / "earlier" if "model" in key else checkpoint)}

    return change


def _trainers_as_model(job: Job) -> dict[str, Any]:
    (job.root / "trained/checkpoint-9").mkdir(parents=True)
    job.model.rename(job.root / "trained/checkpoint-10")
    return {"model.name_or_path": str(job.root / "trained")}


def _adapter_beside_the_model(job: Job) -> None:
    (job.model / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"}))


def _adapter_bin(job: Job) -> dict[str, Any]:
    folder = job.root / "adapter"
    folder.mkdir()
    (folder / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})
    )
    (folder / "adapter_model.bin").write_bytes(b"x")
    return {"lora.adapter_name_or_path": str(folder)}


def _tokenizer_gone(job: Job) -> None:
    for file in job.model.glob("tokenizer*"):
        file.unlink()
    for file in job.model.glob("*.jinja"):
        file.unlink()


def _tokenizer_cut(job: Job) -> None:
    cut(job.model / "tokenizer.json")


def _no_template(job: Job) -> dict[str, Any]:
    (job.model / "chat_template.jinja").unlink()
    rows = job.root / "talk.jsonl"
    rows.write_text(
        json.dumps({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})
    )
    return {"data.train": str(rows)}


def _tensors(file: Path, **shapes: list[int]) -> None:
    """A safetensors file with float32 tensors of these shapes; ``__`` in a name stands for a full stop."""
    header, end = dict[str, Any](), 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * math.prod(shape)
        header[name.replace("__", ".")] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + bytes(end))


def _weights_of_others(**shapes: list[int]) -> Fault:
    def make(job: Job) -> dict[str, Any]:
        _tensors(job.model / "model.safetensors", **shapes)
        return {}

    return make


def _reference_of_others(job: Job) -> dict[str, Any]:
    _tensors(job.root / "models/gpt2/model.safetensors", transformer__wte__weight=[300, 32])
    return {"training.algorithm": "dpo", "training.dpo": {"ref_model": "models/gpt2"}, **_rows(PAIRS)(job)}


def _adapter_of_others(**shapes: list[int]) -> Fault:
    def make(job: Job) -> dict[str, Any]:
        (job.root / "adapter").mkdir()
        told = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}
        (job.root / "adapter/adapter_config.json").write_text(json.dumps(told))
        _tensors(job.root / "adapter/adapter_model.safetensors", **shapes)
        return {"lora.adapter_name_or_path": str(job.root / "adapter")}

    return make


def _template_cut(job: Job) -> dict[str, Any]:
    settings = _no_template(job)
    (job.model / "chat_template.jinja").write_text("{% if messages %}")
    return settings


def _rows(text: str, name: str = "rows.jsonl", key: str = "data.train", **more: Any) -> Fault:
    def make(job: Job) -> dict[str, Any]:
        (job.root / name).write_text(text)
        return {key: str(job.root / name), **{k.replace("__", "."): v for k, v in more.items()}}

    return make


def _graded(algorithm: str, loss: str, grades: tuple[float | None, ...]) -> Fault:
    rows = [{"sentence1": f"a {n}", "sentence2": f"b {n}", "label": g} for n, g in enumerate(grades)]
    options = {f"training__{algorithm}": {"loss_type": loss}, "training__algorithm": algorithm}
    return _rows("".join(json.dumps(row) + "\n" for row in rows), **options)


def _bytes(job: Job, content: bytes) -> dict[str, Any]:
    (job.root / "rows.jsonl").write_bytes(content)
    return {"data.train": str(job.root / "rows.jsonl")}


def _folder_of_others(job: Job) -> dict[str, Any]:
    (job.root / "data").mkdir()
    (job.root / "data" / "notes.pdf").write_text("x")
    return {"data.train": str(job.root / "data")}


def _other_split(job: Job) -> dict[str, Any]:
    (job.root / "data").mkdir()
    (job.root / "data" / "train.jsonl").write_text('{"text": "a"}')
    return {"data.train": [{"path": str(job.root / "data"), "split": "test"}]}


def _named_file(job: Job) -> dict[str, Any]:
    return {"data.train": [{"path": str(job.root / "rows.json"), "name": "main"}]}


def _card_of_nothing(job: Job) -> dict[str, Any]:
    (job.root / "data").mkdir()
    (job.root / "data" / "rows.jsonl").write_text('{"text": "a"}')
    card = "---\nconfigs: [{config_name: default, data_files: row.jsonl}]\n---\n"
    (job.root / "data" / "README.md").write_text(card)
    return {"data.train": str(job.root / "data")}


def _unclear_names(job: Job) -> dict[str, Any]:
    (job.root / "data").mkdir()
    for name in ("Train.jsonl", "Test.jsonl"):
        (job.root / "data" / name).write_text('{"text": "a"}')
    return {"data.train": str(job.root / "data")}


def _output_is_a_file(job: Job) -> None:
    (job.root / "run").write_text("x")


def _pipe(name: str, **settings: Any) -> Fault:
    """A FIFO that nobody writes into, in place of a file below the job's folder."""

    def make(job: Job) -> dict[str, Any]:
        path = job.root / name
        path.unlink(missing_ok=True)
        os.mkfifo(path)
        return {k.replace("__", "."): v for k, v in settings.items()}

    return make


def _adapter_pipe(job: Job) -> dict[str, Any]:
    _adapter_bin(job)
    os.mkfifo(job.root / "adapter" / "adapter_model.safetensors")
    return {"lora.adapter_name_or_path": str(job.root / "adapter")}


def _link_to_nothing(job: Job) -> dict[str, Any]:
    (job.root / "run").symlink_to(job.root / "nowhere" / "deep")
    return {}


def _link_in_a_circle(job: Job) -> dict[str, Any]:
    (job.root / "run").symlink_to(job.root / "run")
    return {}


def _socket(job: Job) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(job.root / "rows.jsonl"))
    return {"data.train": "rows.jsonl"}


PAIRS = json.dumps({"prompt": "a", "chosen": "b", "rejected": "c"})
FAULTS: list[tuple[str, Fault, str]] = [
    ("fewer rows than ranks", lambda job: {"launch.nproc": 9, "launch.nnodes": 1}, "data.too_few_rows"),
    (
        "no row for some rank, the weight counted",
        lambda job: {
            "launch.nproc": 5,
            "data.train": [{"path": str(job.root / "rows.json"), "max_rows": 2, "weight": 2.0}],
        },
        "data.too_few_rows",
    ),
    (
        "not one whole step",
        lambda job: {"training.dataloader_drop_last": True, "training.per_device_train_batch_size": 16},
        "training.no_steps",
    ),
    ("no such folder", lambda job: {"model.name_or_path": "/no/such"}, "plan.model_missing"),
    ("misspelt folder", lambda job: {"model.name_or_path": "models/lama"}, "plan.model_missing"),
    (
        "a file as model",
        lambda job: {"model.name_or_path": str(job.root / "models/llama/config.json")},
        "model.not_a_folder",
    ),
    (
        "a folder of data as model",
        lambda job: {"model.name_or_path": str(job.root / "models")},
        "plan.model_config",
    ),
    ("config.json missing", _config_missing, "plan.model_config"),
    ("config.json cut", _config_cut, "plan.model_config"),
    ("config.json a list", _config_list, "plan.model_config"),
    ("weights empty", _weights_empty, "model.damaged_weights"),
    ("weights cut", _weights_cut, "model.damaged_weights"),
    ("weights a web page", _weights_html, "model.damaged_weights"),
    ("no weights", _weights_none, "model.no_weights"),
    ("pickles", _pickles, "model.pickled"),
    ("shards missing", _shards, "model.missing_shards"),
    ("index cut", _index_cut, "model.weights_index"),
    ("an adapter as model", _adapter_as_model, "model.adapter_folder"),
    ("an adapter beside the model", _adapter_beside_the_model, "model.adapter_folder"),
    ("a run as model", _run_as("model.name_or_path"), "model.run_folder"),
    ("a checkpoint as adapter", _run_as("lora.adapter_name_or_path"), "model.run_folder"),
    ("the Trainer's folder as model", _trainers_as_model, "model.run_folder"),
    ("an adapter of pickles", _adapter_bin, "model.pickled"),
    (
        "weights of another vocabulary",
        _weights_of_others(model__embed_tokens__weight=[319, 32]),
        "plan.weights_sizes",
    ),
    (
        "weights of another width",
        _weights_of_others(model__layers__0__mlp__up_proj__weight=[52, 64]),
        "plan.weights_sizes",
    ),
    (
        "weights of fewer layers",
        _weights_of_others(model__layers__0__mlp__up_proj__weight=[52, 32]),
        "plan.weights_sizes",
    ),
    ("a reference of another vocabulary", _reference_of_others, "plan.weights_sizes"),
    (
        "an adapter of another width",
        _adapter_of_others(base_model__model__model__layers__0__self_attn__q_proj__lora_A__weight=[4, 64]),
        "plan.weights_sizes",
    ),
    (
        "an adapter of another rank",
        _adapter_of_others(base_model__model__model__layers__0__self_attn__q_proj__lora_B__weight=[32, 8]),
        "plan.weights_sizes",
    ),
    (
        "an adapter of a deeper model",
        _adapter_of_others(base_model__model__model__layers__4__self_attn__q_proj__lora_B__weight=[32, 4]),
        "plan.weights_sizes",
    ),
    ("no adapter there", lambda job: {"lora.adapter_name_or_path": "/no/adapter"}, "plan.adapter_folder"),
    ("no tokenizer", _tokenizer_gone, "data.no_tokenizer"),
    ("tokenizer cut", _tokenizer_cut, "data.bad_tokenizer"),
    ("another tokenizer missing", lambda job: {"model.tokenizer": "/no/tokenizer"}, "data.no_tokenizer"),
    ("no chat template", _no_template, "data.no_chat_template"),
    (
        "a template without its end",
        lambda job: {"model.chat_template": "{% for m in messages %}{{ m.content }}"},
        "data.bad_chat_template",
    ),
    (
        "loss on answers of plain text",
        _rows('{"text": "one"}', data__train_on="assistant"),
        "data.text_has_no_answers",
    ),
    ("a tokenizer's template cut", _template_cut, "data.bad_chat_template"),
    (
        "an option that the template does not read",
        lambda job: {"model.chat_template_kwargs": {"enable_thinkin": False}},
        "data.template_option",
    ),
    ("a template of no name", lambda job: {"model.chat_template": "chatmll"}, "data.bad_chat_template"),
    (
        "reference missing",
        lambda job: {
            "training.algorithm": "dpo",
            "training.dpo": {"ref_model": "/no/ref"},
            **_rows(PAIRS)(job),
        },
        "plan.model_missing",
    ),
    ("no such data", lambda job: {"data.train": "/no/rows.jsonl"}, "data.missing"),
    ("no file of a system turn", lambda job: {"data.default_system": "/no/turn.txt"}, "data.system_file"),
    ("misspelt data", lambda job: {"data.train": "rows.jsn"}, "data.missing"),
    ("data of another kind", _rows("x", "rows.xlsx"), "data.unknown_suffix"),
    ("empty data", _rows(""), "data.empty"),
    ("data of one object", _rows('{\n"version": 1,\n"rows": []\n}', "one.json"), "data.not_a_list"),
    ("data no JSON", _rows("text, more\na, b\n"), "data.not_json"),
    ("data of no known format", _rows('{"alpha": 1}\n'), "data.format_unknown"),
    ("pairs for SFT", _rows(PAIRS), "data.format_preference"),
    (
        "pairs for KTO",
        _rows('{"prompt": "a", "chosen": "b", "rejected": "c"}', training__algorithm="kto"),
        "data.format_labelled",
    ),
    ("SFT rows for DPO", _rows('{"text": "a"}', training__algorithm="dpo"), "data.format_pairs"),
    ("a folder without data", _folder_of_others, "data.empty_folder"),
    ("a split that is not there", _other_split, "data.split_missing"),
    ("a name beside a file", _named_file, "data.config_name"),
    ("a README that names no file", _card_of_nothing, "data.card"),
    ("files whose names say another split", _unclear_names, "data.files_unclear"),
    ("no Arrow", _rows("x", "rows.arrow"), "data.not_arrow"),
    (
        "columns that are not there",
        lambda job: {
            "data.train": [
                {"path": str(job.root / "rows.json"), "columns": {"prompt": "asked", "completion": "output"}}
            ]
        },
        "data.column_missing",
    ),
    ("data in Latin-1", lambda job: _bytes(job, b'{"text": "\xff"}\n'), "data.not_utf8"),
    (
        "data of two formats",
        _rows('{"query": "a", "question": "b", "chosen": "c", "rejected": "d"}', training__algorithm="dpo"),
        "data.format_ambiguous",
    ),
    (
        "no prompts for a rollout",
        _rows(
            '{"alpha": "a"}',
            training__algorithm="grpo",
            training__rollout={"max_completion_length": 32, "rewards": "length"},
        ),
        "data.format_prompts",
    ),
    (
        "a text whose class is null",
        _rows(
            '{"text": "a", "label": null}\n{"text": "b", "label": 1}\n', training__algorithm="classification"
        ),
        "data.no_class",
    ),
    (
        "texts without classes",
        _rows('{"text": "a"}', training__algorithm="classification"),
        "data.format_classes",
    ),
    (
        "a document whose grade is no number",
        _rows('{"query": "a", "positive": "b", "score": "much"}', training__algorithm="embedding"),
        "data.bad_grade",
    ),
    *(
        (f"grades that {loss} does not read", _graded(algorithm, loss, grades), "retrieval.grades")
        for algorithm, loss, grades in (
            ("embedding", "infonce", (1, 0)),
            ("embedding", "cosine_similarity", (5, 0.5)),
            ("embedding", "cosine_similarity", (None, 0.5)),
            ("reranker", "pointwise", (3, 1)),
            ("reranker", "listwise", (-1, 1)),
        )
    ),
    (
        "vectors of two classes",
        _rows(
            '{"text": "a", "label": [0, 1]}\n{"text": "b", "label": [1, 0]}\n',
            training__algorithm="classification",
        ),
        "data.classes",
    ),
    (
        "one class everywhere",
        _rows(
            '{"text": "a", "label": "spam"}\n{"text": "b", "label": "spam"}\n',
            training__algorithm="classification",
        ),
        "data.classes",
    ),
    ("queries alone", _rows('{"query": "a"}', training__algorithm="reranker"), "data.format_retrieval"),
    ("JSON under the name of text", _rows('{"text": "a"}\n{"text": "b"}\n', "rows.txt"), "data.disguised"),
    ("CSV with an open quote", _rows('prompt,completion\n"a,b\n"a,b\n', "rows.csv"), "data.not_csv"),
    ("a column twice", _rows("prompt,completion,prompt\na,b,c\n", "rows.csv"), "data.two_columns"),
    ("a pointer of Git LFS", _rows("version https://git-lfs.github.com/spec/v1\n"), "core.lfs_pointer"),
    ("Parquet cut", _rows("x" * 40, "rows.parquet"), "data.not_parquet"),
    (
        "a column of no format",
        lambda job: {
            "data.train": [{"path": str(job.root / "rows.json"), "columns": {"promt": "instruction"}}]
        },
        "data.column_unknown",
    ),
    (
        "no such evaluation data",
        lambda job: {"data.eval": "/no/eval.jsonl", "training.eval_strategy": "steps"},
        "data.missing",
    ),
    ("evaluation data empty", _rows("", "eval.jsonl", "data.eval"), "data.empty"),
    ("a FIFO as config.json", _pipe("models/llama/config.json"), "plan.model_config"),
    ("a FIFO as weights", _pipe("models/llama/model.safetensors"), "model.special_file"),
    ("a FIFO as index", _pipe("models/llama/model.safetensors.index.json"), "model.special_file"),
    ("a FIFO as tokenizer", _pipe("models/llama/tokenizer.json"), "data.bad_tokenizer"),
    (
        "a FIFO as reference",
        _pipe(
            "models/gpt2/config.json", training__algorithm="dpo", training__dpo={"ref_model": "models/gpt2"}
        ),
        "model.special_file",
    ),
    ("a FIFO as rows", _pipe("rows.jsonl", data__train="rows.jsonl"), "data.unreadable"),
    ("a FIFO as Parquet", _pipe("rows.parquet", data__train="rows.parquet"), "data.unreadable"),
    ("a socket as rows", _socket, "data.unreadable"),
    ("a FIFO as adapter", _adapter_pipe, "model.special_file"),
    ("a FIFO as DeepSpeed file", _pipe("ds.json", training__deepspeed="ds.json"), "config.unreadable"),
    ("a FIFO as output", _pipe("run"), "run.not_a_directory"),
    ("output a link to nothing", _link_to_nothing, "run.not_writable"),
    ("output a link to itself", _link_in_a_circle, "run.not_writable"),
    ("output of the kernel", lambda job: {"training.output_dir": "/proc/x/run"}, "run.not_writable"),
    (
        "output with too long a name",
        lambda job: {"training.output_dir": "/".join(["n" * 200] * 30)},
        "run.not_writable",
    ),
    (
        "a cache below a file",
        lambda job: {"data.cache_dir": str(job.root / "rows.json" / "cache")},
        "data.cache_write",
    ),
    ("a cache of the kernel", lambda job: {"data.cache_dir": "/proc/x"}, "data.cache_write"),
    ("output is a file", _output_is_a_file, "run.not_a_directory"),
    (
        "output below a file",
        lambda job: {"training.output_dir": str(job.root / "rows.json" / "run")},
        "run.not_writable",
    ),
    (
        "no such accelerate file",
        lambda job: {"training.accelerate_config": "no.yaml"},
        "config.foreign_missing",
    ),
    ("no such deepspeed file", lambda job: {"training.deepspeed": "no.json"}, "config.foreign_missing"),
    (
        "no checkpoint there",
        lambda job: {"training.resume_from_checkpoint": "/no/such"},
        "resume.not_a_checkpoint",
    ),
    (
        "a model as checkpoint",
        lambda job: {"training.resume_from_checkpoint": str(job.model)},
        "resume.not_a_checkpoint",
    ),
    ("latest of nothing", lambda job: {"training.resume_from_checkpoint": "latest"}, "resume.no_checkpoint"),
]


LONG = "n" * 300
PATHS = {
    "model.name_or_path": LONG,
    "model.tokenizer": LONG,
    "lora.adapter_name_or_path": LONG,
    "model.chat_template": LONG,
    "data.train": f"{LONG}.jsonl",
    "data.eval": f"{LONG}.jsonl",
    "data.cache_dir": LONG,
    "training.output_dir": LONG,
    "training.resume_from_checkpoint": LONG,
    "training.deepspeed": f"{LONG}.json",
    "training.fsdp_config": f"{LONG}.json",
}


@pytest.mark.parametrize(
    ("base", "model", "same"),
    [
        ("Qwen/Qwen3-8B", "/models/qwen3-8b/", True),
        ("/x/models--Qwen--Qwen3-8B/snapshots/0a1b", "Qwen/Qwen3-8B", True),
        ("Qwen/Qwen3-8B", "Qwen/Qwen3-4B", False),
        ("/x/base", "/x/chat", False),
    ],
)
def test_an_adapter_on_another_base_is_told(tmp_path: Path, base: str, model: str, same: bool) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": base}))
    found = [d.code for d in check_adapter_base(str(tmp_path), model)]
    assert found == ([] if same else ["model.adapter_base"])


@pytest.mark.parametrize("key", ["model.name_or_path", "lora.adapter_name_or_path"])
def test_of_a_runs_folder_nothing_is_said_but_that(
    job: Job, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    wrong = [d for d in job.found(_run_as(key)(job)).values() if d.severity.value == "error"]
    assert [d.code for d in wrong] == ["model.run_folder"] and "paceline export" in wrong[0].hint, wrong


@pytest.mark.parametrize("algorithm", ["grpo", "ppo"])
def test_a_judge_that_is_not_there_is_told_once_at_the_key_that_names_it(
    job: Job, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    rollout = {"max_completion_length": 32, "rewards": [{"name": "model", "options": {"model": "/no/judge"}}]}
    file = job.yaml(
        {**_rows('{"prompt": "a"}')(job), "training.algorithm": algorithm, "training.rollout": rollout}
    )
    with pytest.raises(ConfigError) as raised:
        planned(load(file, []))
    missing = [d for d in raised.value.diagnostics if d.code == "plan.model_missing"]
    line = 1 + next(n for n, text in enumerate(file.read_text().splitlines()) if '"rewards"' in text)
    assert [d.where for d in missing] == [f"{file}:{line}"], missing


def test_of_two_servers_that_fail_alike_both_are_named(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    urls = ["http://127.0.0.1:9", "http://127.0.0.1:11"]  # nobody listens on these
    rollout = {"rewards": [{"name": "ended"}], "servers": [{"url": url} for url in urls]}
    changed = {"training.algorithm": "grpo", "training.rollout": {"max_completion_length": 32, **rollout}}
    file = job.yaml({**_rows('{"prompt": "a"}')(job), **changed})
    _, findings = planned(load(file, []))
    dead = [d.found.partition(": ")[0] for d in findings if d.code == "rollout.server_unreachable"]
    assert dead == urls


def test_templates_of_all_tags_are_jinja() -> None:
    own = Path(template_texts.__file__).parent / "templates"
    for text in (
        "{% generation %}{{ a }}{% endgeneration %}",
        "{% for m in x %}{% break %}{% endfor %}",
        *(f.read_text() for f in own.glob("*.jinja")),
    ):
        assert template_texts.syntax_error(text) is None


@pytest.mark.parametrize("key", PATHS)
def test_a_name_that_no_file_can_have_is_told_at_its_line(
    job: Job, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_this_process(monkeypatch)
    found = job.found({key: PATHS[key]})
    wrong = [d for d in found.values() if d.severity.value == "error"]
    assert wrong and all("job.yaml:" in d.where or field_of(d.where) for d in wrong), found


@pytest.mark.parametrize(
    ("fault", "code"), [(f, c) for _, f, c in FAULTS], ids=[name for name, _, _ in FAULTS]
)
def test_a_fault_is_found_by_plan(job: Job, fault: Fault, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = fault(job) or {}
    in_this_process(monkeypatch)
    found = job.found(settings)
    assert code in found, {c: d.render() for c, d in found.items()}
    assert found[code].severity.value == "error" and (found[code].hint or found[code].found)
    assert (
        "job.yaml:" in found[code].where
        or field_of(found[code].where)
        or code.startswith(("plan.model_config", "config.unreadable", "run.", "resume."))
    ), found[code].render()


def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The look without its process, which a test of its own starts: half a second a fault."""
    from paceline.launch.preflight import child_checks
    from paceline.training.preflight import trial as trial

    def asked(job: dict[str, Any]) -> tuple[dict[str, Any], str]:
        return next(trial.answers(job)), ""

    monkeypatch.setattr(child_checks, "run_child", asked)


def test_the_sound_job_is_planned(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    assert not {code for code, d in job.found().items() if d.severity.value == "error"}


def test_all_faults_are_told_at_once(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    in_this_process(monkeypatch)
    settings = {
        "data.train": "/no/rows.jsonl",
        "data.eval": "/no/eval.jsonl",
        "model.name_or_path": "/no/model",
        "training.resume_from_checkpoint": "/no/run",
        "training.parallelism": {"tp_size": 2},
        "launch.nproc": 1,
    }
    found = job.found(settings)
    assert set(found) >= {"data.missing", "plan.model_missing", "resume.not_a_checkpoint", "par.product"}


def test_nothing_heavy_is_imported_to_refuse(job: Job) -> None:
    """The processes themselves: neither the command line nor the look imports torch or Transformers, and
    nothing else is started.
    """
    import subprocess
    import sys

    from support import ROOT, worker_environment

    program = (
        "import sys; sys.argv = ['paceline', 'plan', 'job.yaml']\nimport json,"
        " paceline.launch.preflight.child_checks as b\nasked = b.run_child\ndef told(job):\n    answer ="
        " asked(job); print('HEAVY', answer[0]['imported'], file=sys.stderr); return answer\nb.run_child ="
        " told\nfrom paceline.cli.main import main\ntry:\n    main()\nfinally:\n    print('HERE', [n for n in"
        " ('torch', 'transformers', 'numpy') if n in sys.modules], file=sys.stderr)\n"
    )
    job.yaml({"data.train": "/no/rows.jsonl", "model.name_or_path": "models/lama"})
    env = worker_environment({"PACELINE_CACHE": str(job.root / "cache")})
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=job.root, env=env, capture_output=True, text=True, timeout=120
    )
    assert ROOT.is_dir() and done.returncode == 2, done.stderr
    assert "HERE []" in done.stderr and "HEAVY []" in done.stderr, done.stderr
    assert "data.missing" in done.stderr and "error[plan.model_missing]" in done.stderr
    assert "job.yaml:" in done.stderr


@pytest.mark.parametrize("adapter", [False, True])
def test_the_line_that_converts_pickles_works(job: Job, adapter: bool) -> None:
    """It is run as the message has it; the folder that it writes is one that the look takes."""
    import shlex
    import sys

    import torch
    from support import run_process
    from transformers import LlamaConfig, LlamaForCausalLM

    from paceline.plan.model.files.folder_check import check_adapter_folder, check_model_folder

    made = LlamaForCausalLM(
        LlamaConfig(
            **{
                k: v
                for k, v in json.loads((job.model / "config.json").read_text()).items()
                if k != "architectures"
            }
        )
    )
    folder = job.root / "with space"
    shutil.copytree(job.model, folder)
    (folder / "model.safetensors").unlink()
    if adapter:
        from peft import LoraConfig, get_peft_model

        made.save_pretrained(job.model)
        made.name_or_path = str(job.model)
        get_peft_model(made, LoraConfig(r=2, target_modules=["q_proj"])).save_pretrained(
            folder, safe_serialization=False
        )
        [found] = check_adapter_folder(str(folder), "lora.adapter_name_or_path")
    else:
        torch.save(made.state_dict(), folder / "pytorch_model.bin")
        [found] = check_model_folder(str(folder), "model.name_or_path")
    assert found.code == "model.pickled"
    line = found.hint.partition("new folder: ")[2]
    program, option, code, *arguments = shlex.split(line)
    assert (program, option) == ("python", "-c")
    (job.root / "line.py").write_text(code)
    done = run_process([sys.executable, str(job.root / "line.py"), *arguments], 240, None, job.root)
    assert done.code == 0, done.err
    look = check_adapter_folder if adapter else check_model_folder
    assert look(f"{folder}-safetensors", "k") == []
