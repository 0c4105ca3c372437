"""No text points nowhere: every verb, option, key, code and file that a text of the product names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import typer

from paceline.cli.main import VERBS, application_of
from paceline.config.keys.aliases import ALIASES, SECTION_ALIASES
from paceline.config.keys.suggest import synonyms
from paceline.config.keys.valid_keys import RECOGNISED, RECOGNISED_IN
from paceline.config.schema import SECTIONS, field_of, fields
from paceline.core.diagnostics import all_codes

ROOT = Path(__file__).resolve().parents[3]
_VERB = re.compile(r"(?<![\w/.-])paceline (?:-[\w-]+ )*([a-z]+)\b(?![\w(=/.-])")
_OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z0-9_-]*[a-z0-9])(?![\w*…-])")
_COMMAND = re.compile(r"(?<![\w/.-])paceline ([a-z]+)(?: ([a-z]+)\b)?((?:(?!paceline )[^`;(),\n#|\"'。])*)")
_KEY = re.compile(rf"(?<![\w./`*-])`?((?:{'|'.join(SECTIONS)})(?:\.[a-z_0-9]+)+)\b(?![\w/(*-])")
_FILE = re.compile(
    r"(?<![\w./-])((?:docs|configs|examples|scripts|dev|tests|paceline)/[\w./-]*\w\.(?:md|py|yaml|json|txt|sh))\b"
)
#: options of other programs that texts name: torchrun, accelerate, deepspeed, pip, vLLM, docker, Slurm,
#: mpirun, git, apt …
FOREIGN_OPTIONS = frozenset(
    [
        "--nproc_per_node",
        "--resume-from-checkpoint",  # of axolotl
        "--load",  # of Megatron
        "--max-restarts",
        "--mail-type",  # of sbatch
        "--local-rank",
        "--local_rank",
        "--module",
        "--logdir",
        "--repo-type",  # of hf
        "--strict",
        "--api-key",  # of vLLM
        "--logprobs-mode",
        "--block-size",
        "--quantization",
        "--max-model-len",
        "--enable-lora",
        "--enable-scale-out",
        "--max-lora-rank",
        "--weight-transfer-config",
        "--stage",  # of LLaMA-Factory's and TRL's command lines, which config import reads
        "--model_name_or_path",
        "--beta",
        "--dataset_name",
        "--query-gpu",
        "--showproductname",
        "--showmeminfo",
        "--showuniqueid",
        "--force-reinstall",
        "--index-url",
        "--gpus",
        "--query-compute-apps",
        "--shm-size",
        "--ipc",
        "--ulimit",
        "--gpus-per-task",
        "--device",
        "--format",
        "--multi_gpu",
        "--num_processes",
        "--mixed_precision",
        "--gradient_accumulation_steps",
        "--use_deepspeed",
        "--zero_stage",
        "--cpu",
        "--use_fsdp",
        "--gradient_clipping",
        "--num_gpus",
        "--num_nodes",
        "--hostfile",
        "--no_ssh",
        "--include",
        "--exclude",
        "--autotuning",
        "--bind_cores_to_rank",
        "--deepspeed_config_file",
        "--security-opt",
        "--ntasks-per-node",
        "--gpus-per-node",
        "--npernode",
        "--local-dir",
        "--target",
        "--rm",
        "--no-deps",
        "--find-links",
        "--port",
        "--logprobs-mode",
        "--block-size",
        "--quantization",
        # LLaMA-Factory's, which main.py takes
        "--stage",
        "--do_train",
        "--model_name_or_path",
        "--dataset",
        "--dataset_dir",
        "--template",
        "--output_dir",
        "--eval_strategy",
    ]
)


def documents() -> Iterator[tuple[str, str]]:
    """(place, text) of what is read: pages, comments of shipped YAML files, every text in the package's
    sources.
    """
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "dev" / "benchmarks" / "README.md",
        *ROOT.glob("*.yaml"),
    ]:
        if path.name != "CHANGELOG.md":
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                yield f"{path.relative_to(ROOT)}:{number}", line
    for path in sorted((ROOT / "paceline").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
                yield f"{path.relative_to(ROOT)}:{node.lineno}", node.value


@cache
def texts() -> tuple[tuple[str, str], ...]:
    return tuple(documents())


@cache
def options() -> frozenset[str]:
    """Every option of every verb, of main.py and of the scripts."""
    found: set[str] = set()
    for verb in VERBS:
        todo: list[Any] = [typer.main.get_command(application_of(verb))]
        while todo:
            command = todo.pop()
            todo += list(getattr(command, "commands", {}).values())
            found |= {option for p in command.params for option in (*p.opts, *p.secondary_opts)}
    for path in (ROOT / "paceline").rglob(
        "*.py"
    ):  # programs that are started by others: argparse, and the compatible scripts
        if (
            path.name in ("compat.py", "main.py", "options.py", "server.py", "probe.py", "scaling.py")
            or "argparse" in path.read_text()
        ):
            found |= set(re.findall(r"[\"'](--[a-z][\w-]*)[\"']", path.read_text(encoding="utf-8")))
    for path in [
        *(ROOT / "dev" / "benchmarks").rglob("*.py"),
        *(ROOT / "scripts").iterdir(),
        *(ROOT / "dev" / "research").iterdir(),
        ROOT / "tests/conformance/__main__.py",
    ]:
        if path.is_file():
            found |= set(re.findall(r"(--[a-z][\w-]*)", path.read_text(encoding="utf-8", errors="ignore")))
    return frozenset(found)


def keys() -> set[str]:
    inner = {f"training.rollout.{name}" for name in ("server", "rewards")}
    return {
        *fields(),
        *inner,
        *SECTION_ALIASES,
        *(f"{s}.{a}" for s in SECTIONS for a in (*ALIASES, *RECOGNISED, *RECOGNISED_IN.get(s, ()))),
    }


def test_every_verb_that_is_named_exists() -> None:
    # an English "the"
    said = "paceline VERB --help shows the arguments of a verb; paceline --version the version."
    wrong = [
        (p, found)
        for p, text in texts()
        for found in _VERB.findall(text)
        if found not in VERBS and text != said
    ]
    assert wrong == []
    assert sum(bool(_VERB.search(text)) for _, text in texts()) > 40


def test_every_option_that_is_named_exists() -> None:
    known = options() | FOREIGN_OPTIONS
    wrong = [
        (place, found) for place, text in texts() for found in _OPTION.findall(text) if found not in known
    ]
    assert wrong == []


def test_a_command_that_is_named_takes_its_options() -> None:
    """Each verb its own, in remedies, too: ``paceline export --last`` would be refused by its parser."""
    remedies = [
        (str(file.relative_to(ROOT)), line)
        for file in (ROOT / "paceline").rglob("codes.toml")
        for line in file.read_text(encoding="utf-8").splitlines()
    ]
    found = [(place, wrong) for place, text in (*texts(), *remedies) for wrong in not_taken(text)]
    assert found == []


def not_taken(text: str) -> list[str]:
    """Return the options, each after its verb, that a text gives to verbs that have them not."""
    wrong = []
    for verb, inner, rest in _COMMAND.findall(text):
        command: Any = app_of(verb) if verb in VERBS else None
        own = getattr(command, "commands", {}).get(inner) or command
        passes_on = own is None or own.context_settings.get("ignore_unknown_options")  # as demo and import
        if not passes_on and not getattr(own, "commands", {}):
            taken = {"--help", *(o for p in own.params for o in (*p.opts, *p.secondary_opts))}
            wrong += [f"{own.name} {option}" for option in _OPTION.findall(rest) if option not in taken]
    return wrong


@cache
def app_of(verb: str) -> Any:
    return typer.main.get_command(application_of(verb))


def test_every_key_that_is_named_exists() -> None:
    known, codes = keys(), all_codes()
    wrong = []
    for place, text in texts():
        for found in _KEY.findall(text):
            path = found.removesuffix(".")
            names = ("model.safetensors", "model.layers.", "model.gguf")  # of files and tensors
            if path.startswith(names) or path.split(".")[1] in ("md", "zh"):  # of pages
                continue
            parents = [path.rsplit(".", n)[0] for n in range(path.count("."))]
            if not any(p in known or field_of(p) is not None or p in codes for p in parents):
                wrong.append((place, path))
    assert wrong == []


def test_every_file_that_is_named_exists() -> None:
    wrong = [
        (place, found)
        for place, text in texts()
        for found in _FILE.findall(text)
        if not (ROOT / found).exists()
    ]
    assert wrong == []


def test_a_text_that_points_nowhere_is_found() -> None:
    """The patterns see what they should: each of these names something that does not exist."""
    assert _VERB.findall("`paceline oracle` measures it") == ["oracle"]
    assert _OPTION.findall("write --no-such 3") == ["--no-such"]
    assert not_taken("run `paceline checkpoints average RUN --public`") == ["average --public"]
    assert _KEY.findall("write: training.no_such: 3") == ["training.no_such"]
    assert _FILE.findall("see docs/no-such.md for it") == ["docs/no-such.md"]
    assert not {"oracle"} & set(VERBS) and "--no-such" not in options() | FOREIGN_OPTIONS
    assert "training.no_such" not in keys() and all(" " in m or field_of(m) for m in synonyms().values())
