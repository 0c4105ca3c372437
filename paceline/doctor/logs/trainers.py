"""Training programs: how their logs look, and how each goes on from a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingProgram:
    """``marks``: texts of its logs; ``command``: how it goes on from ``{path}``."""

    name: str
    marks: tuple[str, ...]
    command: str


#: The first whose mark a log holds
TRAINERS = (
    TrainingProgram("axolotl", ("axolotl",), "axolotl train CONFIG.yaml --resume-from-checkpoint {path}"),
    TrainingProgram(
        "LLaMA-Factory",
        ("llamafactory", "llmtuner", "LLaMA-Factory"),
        "llamafactory-cli train CONFIG.yaml resume_from_checkpoint={path}",
    ),
    TrainingProgram(
        "ms-swift", ("[INFO:swift]", "/swift/", "swift sft"), "swift sft … --resume_from_checkpoint {path}"
    ),
    TrainingProgram(
        "TRL", ("/trl/", "trl sft", "trl dpo", "trl grpo"), "trl … --resume_from_checkpoint {path}"
    ),
    TrainingProgram("Megatron", ("megatron", "consumed samples"), "the same command with --load {path}"),
    TrainingProgram(
        "Transformers",
        ("/transformers/trainer.py", "***** Running training *****"),
        'trainer.train(resume_from_checkpoint="{path}")',
    ),
    TrainingProgram("DeepSpeed", ("deepspeed",), 'engine.load_checkpoint("{path}"), then the same command'),
)


def trainer_of(text: str) -> str:
    """Return the name of the trainer that a line shows; "" if it shows none."""
    return next((trainer.name for trainer in TRAINERS if any(mark in text for mark in trainer.marks)), "")
