#!/usr/bin/env python
"""Read other systems' argument names and defaults out of their wheels, as data for ``config import``.

    pip download --no-deps -d WHEELS llamafactory==0.9.5 trl==1.16.0 transformers==5.23.0 ms-swift==4.6.0
    pip download --no-deps --python-version 3.11 --only-binary=:all: -d WHEELS axolotl==0.19.0
    python dev/research/argument_tables.py WHEELS

writes ``paceline/config/import_export/arguments/SYSTEM.json``: names, defaults and the class of each, and the
formats of LLaMA-Factory's templates. The sources are parsed, never imported or run.
"""

from __future__ import annotations

import ast
import json
import sys
import zipfile
from pathlib import Path

OUT = Path(__file__).parents[2] / "paceline/config/import_export/arguments"
SCHEMAS = (
    "config model peft datasets training deprecated quantization trl vllm fsdp integrations multimodal fp8"
    " dynamic_checkpoint"
)
INTEGRATIONS = (
    "cut_cross_entropy densemixer diffusion expert_parallel grokfast hatchery kd kernels liger llm_compressor"
    " lm_eval mora nemo_gym spectrum swanlab"
)
TABLES = {
    "transformers": ("transformers", ["transformers/training_args.py"]),
    "llamafactory": (
        "llamafactory",
        [
            f"llamafactory/hparams/{name}_args.py"
            for name in ("model", "data", "finetuning", "training", "generating")
        ],
    ),
    "trl": (
        "trl",
        [
            *(
                f"trl/trainer/{name}_config.py"
                for name in ("base", "sft", "dpo", "reward", "grpo", "kto", "rloo", "distillation", "model")
            ),
            "trl/scripts/utils.py",
            "trl/scripts/grpo.py",
        ],
    ),
    "axolotl": (
        "axolotl",
        [f"axolotl/utils/schemas/{name}.py" for name in SCHEMAS.split()]
        + [f"axolotl/integrations/{name}/args.py" for name in INTEGRATIONS.split()],
    ),
    "swift": (
        "ms_swift",
        [
            *(
                f"swift/arguments/base_args/{n}_args.py"
                for n in ("model", "data", "template", "generation", "base", "quant")
            ),
            *(f"swift/arguments/{n}_args.py" for n in ("sft", "rlhf", "tuner", "pretrain")),
            "swift/trainers/arguments.py",
            "swift/rlhf_trainers/args_mixin.py",
        ],
    ),
}


def default_of(value: ast.expr | None) -> object:
    """Return a default as JSON; what is computed comes as ``{"computed": source}``."""
    if value is None:
        return {"computed": "required"}
    if isinstance(value, ast.Call) and ast.unparse(value.func) in ("field", "Field"):
        words = {word.arg: word.value for word in value.keywords}
        inner = (
            words.get("default") or words.get("default_factory") or (value.args[0] if value.args else None)
        )
        return default_of(inner)
    if isinstance(value, ast.Lambda):
        value = value.body
    if isinstance(value, ast.Name) and value.id in ("list", "dict"):
        return [] if value.id == "list" else {}
    if isinstance(value, ast.Attribute):  # a member of an enumeration
        return value.attr.lower()
    if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mult, ast.LShift)):
        left, right = default_of(value.left), default_of(value.right)
        if isinstance(left, int) and isinstance(right, int):
            return left * right if isinstance(value.op, ast.Mult) else left << right
    try:
        found = ast.literal_eval(value)
    except ValueError:
        return {"computed": ast.unparse(value)[:60]}
    return found if found is not ... else {"computed": "required"}


def classes_of(source: str) -> dict[str, dict[str, object]]:
    """Return the annotated fields of every class in ``source`` with their defaults."""
    found: dict[str, dict[str, object]] = {}
    for item in ast.parse(source).body:
        if isinstance(item, ast.ClassDef):
            fields = {
                line.target.id: default_of(line.value)
                for line in item.body
                if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name)
                if not line.target.id.startswith("_")
            }
            if fields:
                found[item.name] = fields
    return found


def slots(node: ast.expr | None) -> list[object]:
    """Return a formatter's slots: texts, ``{"token": …}`` and ``{"name": "eos_token"}``."""
    if not isinstance(node, ast.Call):
        return []
    listed = next((word.value for word in node.keywords if word.arg == "slots"), None)
    found: list[object] = []
    for slot in listed.elts if isinstance(listed, ast.List) else []:
        value = ast.literal_eval(slot)
        found.append({"name": sorted(value)[0]} if isinstance(value, set) else value)
    return found


def templates_of(source: str) -> dict[str, dict[str, object]]:
    """Return the formats of every registered template."""
    found: dict[str, dict[str, object]] = {}
    for item in ast.parse(source).body:
        call = item.value if isinstance(item, ast.Expr) else None
        if not isinstance(call, ast.Call) or ast.unparse(call.func) != "register_template":
            continue
        words = {str(word.arg): word.value for word in call.keywords}
        made: dict[str, object] = {
            part: slots(words[f"format_{part}"])
            for part in ("user", "assistant", "system", "prefix", "observation")
            if f"format_{part}" in words
        }
        for name in ("default_system", "stop_words", "efficient_eos", "thought_words"):
            if name in words:
                value = ast.literal_eval(words[name])
                made[name] = list(value) if isinstance(value, tuple) else value
        if "template_class" in words:
            made["class"] = ast.unparse(words["template_class"])
        if "mm_plugin" in words:
            made["images"] = True
        found[ast.literal_eval(words["name"])] = made
    return found


def main() -> None:
    """Write one table a system from the wheels in the folder named on the command line."""
    wheels = Path(sys.argv[1])
    for system, (package, paths) in TABLES.items():
        wheel = max(wheels.glob(f"{package}-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            classes: dict[str, dict[str, object]] = {}
            for path in paths:
                classes |= classes_of(archive.read(path).decode())
            if system == "llamafactory":
                made = templates_of(archive.read("llamafactory/data/template.py").decode())
                _write(
                    "llamafactory_templates",
                    wheel.name,
                    ["llamafactory/data/template.py"],
                    {"templates": made},
                )
        _write(system, wheel.name, paths, {"classes": classes})


def _write(name: str, wheel: str, paths: list[str], content: dict[str, object]) -> None:
    text = json.dumps({"from": wheel, "files": paths, **content}, indent=1, ensure_ascii=False)
    (OUT / f"{name}.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
