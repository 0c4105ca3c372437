"""A folder of another program is named at a resume, with the command that continues from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.checkpoint.convert.convert import READERS
from paceline.checkpoint.format.foreign_folders import FORMS
from paceline.checkpoint.load.find_checkpoint import find_checkpoint
from paceline.core.errors import CheckpointError
from paceline.core.rundir import RunDir

CONVERT = "paceline checkpoints convert"
ADAPTER = ("adapter_config.json", "adapter_model.safetensors")
MODEL = ("config.json", "model.safetensors")
ZERO = "global_step4/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"


def refusal(tmp_path: Path, files: tuple[str, ...], inner: str = "") -> str:
    """The refusal of a resume from a folder of these (empty) files."""
    folder = tmp_path / "theirs"
    for name in files:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("global_step4" if name == "latest" else "{}")
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint(str(folder / inner), RunDir.at(tmp_path / "run"))
    (found,) = caught.value.diagnostics
    assert found.code == "resume.not_a_checkpoint" and "no checkpoint at this path" not in found.what
    return f"{found.what} | {found.hint}"


@pytest.mark.parametrize(
    ("files", "what", "remedy"),
    [
        ((*MODEL, "trainer_state.json", "optimizer.pt"), "Transformers' Trainer, which", CONVERT),
        ((*MODEL, "trainer_state.json", "latest", ZERO), "DeepSpeed's ZeRO, which", CONVERT),
        (("latest", ZERO), "DeepSpeed's ZeRO, which", CONVERT),
        (("zero/model.norm.weight/fp32.pt",), "universal checkpoint of DeepSpeed", CONVERT),
        (("pytorch_model_fsdp_0/.metadata", "trainer_state.json"), "Accelerate under FSDP", CONVERT),
        ((".metadata",), "torch.distributed.checkpoint", CONVERT),
        (("model.safetensors", "optimizer.bin"), "Accelerate's save_state", CONVERT),
        ((*MODEL, "trainer_state.json"), "without its optimizer", "model: {name_or_path: "),
        ((*ADAPTER, "trainer_state.json"), "without its optimizer", "lora: {adapter_name_or_path: "),
        (ADAPTER, "an adapter alone", "lora: {adapter_name_or_path: "),
        (MODEL, "a model alone", "model: {name_or_path: "),
        (("checkpoint-2/trainer_state.json", "checkpoint-10/trainer_state.json"), "checkpoint-10", CONVERT),
    ],
)
def test_what_a_folder_is_and_what_continues_from_it(
    tmp_path: Path, files: tuple[str, ...], what: str, remedy: str
) -> None:
    said, _, hint = refusal(tmp_path, files).partition(" | ")
    assert what in said and remedy in hint, (said, hint)


def test_latest_in_another_programs_output_folder(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoint-4").mkdir(parents=True)
    (tmp_path / "run" / "checkpoint-4" / "trainer_state.json").write_text("{}")
    with pytest.raises(CheckpointError) as caught:
        find_checkpoint("latest", RunDir.at(tmp_path / "run"))
    (found,) = caught.value.diagnostics
    assert found.code == "resume.no_checkpoint" and f"{CONVERT} {tmp_path}/run/checkpoint-4" in found.hint


def test_every_form_that_is_named_can_be_converted() -> None:
    assert set(FORMS) == set(READERS)
