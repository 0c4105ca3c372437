"""KTO's loss, KL and rewards of TRL's own trainer (1.16) on one batch of the same model, from the same rows
through each side's tokenisation.

TRL is no dependency: ``pip install trl==1.16.0`` beside Paceline, then
``pytest tests/unit/algorithms/test_kto_against_trl.py``; skipped without.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from support import labelled_rows, write_labelled
from trl_job import trl_job

from paceline.algorithms.preference.kto import KTO
from paceline.models.factory import HFModelFactory
from paceline.protocols.batch import MISMATCHED, Batch
from paceline.protocols.roles import Role

pytest.importorskip("trl", reason="needs trl 1.16, which is no dependency")
pytestmark = pytest.mark.filterwarnings("ignore")
ROWS, BOUND = 12, 1e-5


@pytest.fixture
def job(tmp_path: Path, tokenizer_dir: Path) -> SimpleNamespace:
    """As ``trl_job``, and our batch of all rows with its mismatched one."""
    rows = [
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "completion": [{"role": "assistant", "content": row["completion"]}],
            "label": row["label"],
        }
        for row in labelled_rows(ROWS)
    ]
    file, places = write_labelled(tmp_path / "rows.json", ROWS), list(range(ROWS))
    made = trl_job(tmp_path, tokenizer_dir, "kto", "labelled", file, rows)
    others = {MISMATCHED: made.source.mismatched(0, places, range(ROWS))}
    made.batch = replace(made.source.batch(0, places), others=others)
    return made


def same_tokens(inputs: dict[str, torch.Tensor], prefix: str, batch: Batch) -> None:
    """TRL's padded rows are our documents."""
    bounds = batch.cu_seqlens.tolist()
    for d in range(ROWS):
        kept = inputs[f"{prefix}attention_mask"][d].bool()
        assert (
            inputs[f"{prefix}input_ids"][d][kept].tolist()
            == batch.input_ids[0, bounds[d] : bounds[d + 1]].tolist()
        )


@pytest.mark.parametrize(
    "options",
    [{}, {"desirable_weight": 0.7, "undesirable_weight": 1.9}, {"loss_type": "apo_zero_unpaired"}],
    ids=["kto", "weights", "apo_zero_unpaired"],
)
@pytest.mark.parametrize("swapped", [False, True], ids=["", "other way"])
def test_kto_trainer(job: SimpleNamespace, options: dict[str, Any], swapped: bool) -> None:
    from transformers import AutoModelForCausalLM
    from trl import KTOConfig, KTOTrainer

    folders = job.folders[::-1] if swapped else job.folders
    load: Any = AutoModelForCausalLM.from_pretrained
    policy, reference = (load(folder, dtype=torch.float32) for folder in folders)
    arguments = KTOConfig(
        output_dir=job.out,
        use_cpu=True,
        bf16=False,
        report_to="none",
        per_device_train_batch_size=ROWS,
        gradient_checkpointing=False,
        max_length=128,
        beta=0.2,
        **options,
    )
    trainer: Any = KTOTrainer(
        model=policy,
        ref_model=reference,
        args=arguments,
        train_dataset=job.rows,
        processing_class=job.tokenizer,
    )
    inputs = dict(trainer.data_collator([trainer.train_dataset[i] for i in range(ROWS)]))
    same_tokens(inputs, "", job.batch)
    policy.eval()
    loss = trainer._compute_loss(policy, inputs, False)

    algorithm, modules = KTO(beta=0.2, **options), {}
    for role, folder in zip((Role.POLICY, Role.REFERENCE), folders, strict=True):
        modules[role] = HFModelFactory(
            job.config.model.model_copy(update={"name_or_path": folder}), role
        )().eval()
    ask, batch = algorithm.required_outputs(Role.POLICY, training=True), job.batch
    with torch.no_grad():
        batch = algorithm.attach_outputs(Role.REFERENCE, modules[Role.REFERENCE](batch, ask), batch)
        if algorithm.window_means is not None:
            other = batch.others[MISMATCHED]
            same_tokens(inputs, "KL_", other)
            sums = algorithm.window_sums(
                {role: module(other, ask) for role, module in modules.items()}, other
            )
            batch = batch.with_numbers(
                {name: float(value) / int(weight) for name, (value, weight) in sums.items()}
            )
        outputs = modules[Role.POLICY](batch, ask)
        ours = float(algorithm.losses(Role.POLICY, outputs, batch)["answers"]) / ROWS
        found = algorithm.metrics(Role.POLICY, outputs, batch)
    told = algorithm.summary(
        {name.removesuffix("/answers"): float(value) / ROWS for name, value in found.items()}
    )
    theirs = {name: values[-1] for name, values in trainer._metrics["eval"].items()}
    print(f"loss {ours:.7f}, TRL's {float(loss.detach()):.7f}; KL {told['kl']:.6f}, TRL's {theirs['kl']:.6f}")
    assert ours == pytest.approx(float(loss.detach()), abs=BOUND)
    assert len(told) == 6
    for name, value in told.items():
        assert value == pytest.approx(theirs[name], rel=BOUND, abs=BOUND), name
