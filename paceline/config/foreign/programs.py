"""Recognise YAML files of other training programs by their keys, and say whose they are and what to write."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from paceline.config import codes
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, JsonObject


@dataclass(frozen=True)
class Program:
    """A training program.

    ``is_one`` recognises its files; ``ours``: Paceline's key → the file's dotted path for it; ``flat``: its
    keys are Transformers' names, which Paceline reads too.
    """

    name: str
    is_one: Callable[[JsonObject], bool]
    ours: tuple[tuple[str, str], ...] = ()
    flat: bool = False


def _has(*needed: str, any_of: Sequence[str] = (), least: int = 1) -> Callable[[JsonObject], bool]:
    """Return a test for all of ``needed`` (dotted paths) and at least ``least`` of ``any_of``."""

    def found(data: JsonObject) -> bool:
        some = sum(_at(data, path) is not None for path in any_of)
        return all(_at(data, path) is not None for path in needed) and (not any_of or some >= least)

    return found


def _components(data: Json) -> bool:
    """Whether torchtune's ``_component_`` occurs at any depth."""
    if isinstance(data, dict):
        return "_component_" in data or any(_components(value) for value in data.values())
    return isinstance(data, list) and any(_components(value) for value in data)


PROGRAMS = (
    Program(
        "torchtune",
        _components,
        (
            ("model.name_or_path", "checkpointer.checkpoint_dir"),
            ("data.max_length", "tokenizer.max_seq_len"),
            ("training.learning_rate", "optimizer.lr"),
        ),
    ),
    Program(
        "axolotl",
        _has(
            "base_model",
            any_of=(
                "datasets",
                "pretraining_dataset",
                "sequence_len",
                "micro_batch_size",
                "adapter",
                "rl",
                "val_set_size",
            ),
        ),
        (
            ("model.name_or_path", "base_model"),
            ("data.train", "datasets.0.path"),
            ("data.max_length", "sequence_len"),
            ("training.per_device_train_batch_size", "micro_batch_size"),
            ("lora.r", "lora_r"),
        ),
    ),
    Program(
        "verl",
        _has("actor_rollout_ref"),
        (("model.name_or_path", "actor_rollout_ref.model.path"), ("data.train", "data.train_files")),
    ),
    Program(
        "verl",
        _has(
            "trainer", any_of=("data.train_files", "data.micro_batch_size_per_gpu", "model.partial_pretrain")
        ),
        (("model.name_or_path", "model.partial_pretrain"), ("data.train", "data.train_files")),
    ),
    Program(
        "OpenRLHF",
        _has(
            "pretrain",
            any_of=(
                "micro_train_batch_size",
                "rollout_batch_size",
                "reward_pretrain",
                "actor_num_nodes",
                "input_key",
                "zero_stage",
                "max_len",
                "actor_learning_rate",
            ),
        ),
        (("model.name_or_path", "pretrain"), ("data.max_length", "max_len")),
    ),
    Program(
        "llm-foundry",
        _has(any_of=("train_loader", "max_duration", "max_seq_len"), least=2),
        (("model.name_or_path", "model.pretrained_model_name_or_path"), ("data.max_length", "max_seq_len")),
    ),
    Program(
        "trlX",
        _has("train", "method", "model.model_path"),
        (("model.name_or_path", "model.model_path"), ("data.max_length", "train.seq_length")),
    ),
    Program(
        "ArcticTraining",
        _has("data.sources"),
        (("model.name_or_path", "model.name_or_path"), ("data.max_length", "data.max_length")),
    ),
    Program("NeMo", _has("trainer", any_of=("exp_manager", "model.data", "trainer.num_nodes"))),
    Program(
        "LitGPT",
        _has("checkpoint_dir", any_of=("devices", "precision", "data.class_path", "train"), least=2),
        (("model.name_or_path", "checkpoint_dir"),),
    ),
    Program(
        "ms-swift",
        _has(
            any_of=(
                "train_type",
                "tuner_type",
                "sft_type",
                "rlhf_type",
                "swift_version",
                "custom_dataset_info",
                "model_id_or_path",
            )
        ),
        (("model.name_or_path", "model"), ("data.train", "dataset"), ("data.max_length", "max_length")),
        flat=True,
    ),
    Program(
        "LLaMA-Factory",
        _has(
            any_of=(
                "finetuning_type",
                "dataset_dir",
                "infer_backend",
                "export_dir",
                "dist_config",
                "sample_backend",
                "kernel_config",
                "model_class",
            )
        ),
        flat=True,
    ),
    Program(
        "LLaMA-Factory",
        _has(any_of=("stage", "cutoff_len", "template", "lora_target", "peft_config"), least=2),
        flat=True,
    ),
    Program(
        "TRL",
        _has(
            any_of=(
                "dataset_train_split",
                "dataset_test_split",
                "dataset_config",
                "use_peft",
                "dataset_text_field",
                "script_arguments",
                "vllm_mode",
                "missing_eos_penalty",
                "dataset_mixer",
                "dataset_mixture",
                "dataset_prompt_column",
                "reward_funcs",
                "num_generations",
                "max_completion_length",
                "max_prompt_length",
                "dataset_kwargs",
            )
        ),
        flat=True,
    ),
)


#: The programs whose files `paceline config import` reads
IMPORTED = ("axolotl", "ms-swift", "LLaMA-Factory", "TRL")
#: What a command line of another program holds → its name
_COMMANDS = {
    r"\bverl\.": "verl",
    r"\bopenrlhf\b": "OpenRLHF",
    r"\btune run\b": "torchtune",
    r"\blitgpt\b": "LitGPT",
    r"\bnemo(_rl)?\b": "NeMo",
    r"\bllmfoundry\b|\bcomposer train": "llm-foundry",
    r"\bprime[-_]rl\b": "prime-rl",
    r"\barctic_training\b": "ArcticTraining",
}


def not_imported(name: str) -> tuple[str, str]:
    """Return (what, what to do) of a program whose configs are not translated."""
    hint = f"write a Paceline YAML (docs/guide.md): imported are configs of {', '.join(IMPORTED)}"
    return f"this is a config or command of {name}, which is not imported", hint


def program_of_command(text: str) -> str | None:
    """Return the program that a shell text starts, if its configs are not translated."""
    return next((name for pattern, name in _COMMANDS.items() if re.search(pattern, text)), None)


def program_of(data: Json) -> Program | None:
    """Return the program whose file this is; None for Paceline's own or an unknown one."""
    if not isinstance(data, dict):
        return None
    return next((program for program in PROGRAMS if program.is_one(data)), None)


def another_structure(data: Json, name: str) -> Diagnostic | None:
    """Return the finding for a file whose keys are laid out differently; None otherwise."""
    program = program_of(data)
    if not isinstance(data, dict) or program is None or program.flat:
        return None
    known = [
        f"{ours}: {value}"
        for ours, path in program.ours
        if isinstance(value := _at(data, path), (str, int, float))
    ]
    begins = f", which begins {', '.join(known)}" if known else ""
    imported = f" (`paceline config import {name}` translates it)" if program.name in IMPORTED else ""
    hint = f"write a Paceline YAML (docs/guide.md){begins}{imported}"
    what = f"this is a config of {program.name}, whose keys and structure are different; none of it was read"
    return codes.CONFIG_OTHER_PROGRAM(what, where=f"{name}:1", found=", ".join(list(data)[:4]), hint=hint)


def gathered(problems: Sequence[Diagnostic], data: Json, name: str) -> list[Diagnostic]:
    """Combine unknown keys of a file with Transformers' names into one finding; keep the other findings."""
    program = program_of(data)
    unknown = [
        p for p in problems if p.code == codes.CONFIG_UNKNOWN_KEY.name and p.where.rpartition(":")[0] == name
    ]
    if program is None or not unknown:
        return list(problems)
    keys = ", ".join(f"{p.found} (line {p.where.rpartition(':')[2]}{_near(p)})" for p in unknown)
    many = "1 of its keys has" if len(unknown) == 1 else f"{len(unknown)} of its keys have"
    what = f"this is a config of {program.name}; {many} no meaning here, the others were read"
    translates = (
        f"`paceline config import {name}` translates the whole file"
        if program.name in IMPORTED
        else "remove them"
    )
    hint = f"{translates}; docs/config.md describes the keys of training, docs/guide.md#data the data"
    rest = [p for p in problems if p not in unknown]
    return [codes.CONFIG_OTHER_PROGRAM(what, where=unknown[0].where, found=keys, hint=hint), *rest]


def _near(problem: Diagnostic) -> str:
    """Return the suggestion for an unknown key if it is a likely misspelling."""
    _, suggests, word = problem.hint.partition("did you mean '")
    close = difflib.SequenceMatcher(None, problem.found, word.rstrip("'?")).ratio() > 0.85
    return f": {problem.hint}" if suggests and close else ""


def _at(data: Json, path: str) -> Json:
    for part in path.split("."):
        if isinstance(data, list) and part.isdecimal() and int(part) < len(data):
            data = data[int(part)]
        elif isinstance(data, dict):
            data = data.get(part)
        else:
            return None
    return data
