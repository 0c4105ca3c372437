"""ORPO, SimPO and CPO beside TRL's own trainers (1.16) on one batch of the same model, through TRL's own
tokenisation, forward and losses.

TRL is no dependency: ``pip install trl==1.16.0`` beside Paceline, then
``pytest tests/unit/algorithms/test_reference_free_against_trl.py``.
"""

from __future__ import annotations

from collections import defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch

trl = pytest.importorskip("trl", reason="needs trl 1.16, which is no dependency")
from test_against_trl import PAIRS, arguments, close, job, means, module  # noqa: E402, F401

from paceline.algorithms.preference.cpo import CPO, SimPO  # noqa: E402
from paceline.algorithms.preference.orpo import ORPO  # noqa: E402
from paceline.protocols.roles import Role  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def theirs(trainer: Any, policy: Any) -> tuple[Any, dict[str, list[float]]]:
    """Loss and statistics that TRL's trainer computes of all pairs."""
    inputs = trainer.data_collator([trainer.train_dataset[i] for i in range(PAIRS)])
    policy.eval()
    loss, told = trainer.get_batch_loss_metrics(policy, inputs, train_eval="eval")
    found: dict[str, list[float]] = defaultdict(list)
    for name, value in told.items():
        found[name.removeprefix("eval_")].append(value)
    return loss, found


def trained(kind: str, job: SimpleNamespace, **options: Any) -> tuple[Any, Any]:  # noqa: F811
    """TRL's trainer of a kind (``CPO``, ``ORPO``) and its policy."""
    from importlib import import_module

    from transformers import AutoModelForCausalLM

    made = import_module(f"trl.experimental.{kind.lower()}")
    load: Any = AutoModelForCausalLM.from_pretrained
    policy = load(job.folders[0], dtype=torch.float32)
    args = arguments(getattr(made, f"{kind}Config"), job, beta=0.2, **options)
    rows = job.rows.remove_columns("margin")
    trainer = getattr(made, f"{kind}Trainer")(
        model=policy, args=args, train_dataset=rows, processing_class=job.tokenizer
    )
    return trainer, policy


def ours(algorithm: Any, job: SimpleNamespace) -> dict[str, float]:  # noqa: F811
    with torch.no_grad():
        outputs = module(job, Role.POLICY, job.folders[0])(
            job.batch, algorithm.required_outputs(Role.POLICY, training=True)
        )
    return means(algorithm, Role.POLICY, outputs, job.batch)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cpo_alpha": 0.3, "label_smoothing": 0.1},
        {"loss_type": "hinge", "cpo_alpha": 0.0},
        {"loss_type": "ipo"},
        {"loss_type": "simpo", "simpo_gamma": 0.7},
    ],
    ids=lambda options: ", ".join(map(str, options.values())) or "sigmoid",
)
def test_cpo_trainer(job: SimpleNamespace, options: dict[str, Any]) -> None:  # noqa: F811
    loss, told = theirs(*trained("CPO", job, **options))
    algorithm = CPO(beta=0.2, **options)
    names = {name.removesuffix("/pairs"): name.removesuffix("/pairs") for name in algorithm.train_metrics}
    close(ours(algorithm, job), loss, told, names)


@pytest.mark.parametrize(
    "options", [{}, {"simpo_gamma": 1.3, "label_smoothing": 0.2, "cpo_alpha": 0.4}], ids=["defaults", "all"]
)
def test_simpo_is_cpo_trainer_s_loss_of_that_name(job: SimpleNamespace, options: dict[str, Any]) -> None:  # noqa: F811
    loss, told = theirs(*trained("CPO", job, loss_type="simpo", **{"cpo_alpha": 0.0, **options}))
    algorithm = SimPO(beta=0.2, **options)
    names = {name.removesuffix("/pairs"): name.removesuffix("/pairs") for name in algorithm.train_metrics}
    close(ours(algorithm, job), loss, told, names)


def test_orpo_trainer(job: SimpleNamespace) -> None:  # noqa: F811
    """All but the SFT term, which TRL takes over prompts too: that is CPOTrainer's, over answers."""
    loss, told = theirs(*trained("ORPO", job))
    of_answers = theirs(*trained("CPO", job))[1]["nll_loss"][0]
    algorithm = ORPO(beta=0.2)
    names = {name.removesuffix("/pairs"): name.removesuffix("/pairs") for name in algorithm.train_metrics}
    close(ours(algorithm, job), loss - told["nll_loss"][0] + of_answers, told, names)
