"""The balance loss of a mixture's experts in the plan: its coefficient and scope, and where it is refused.

The formula is Transformers' ``load_balancing_loss_func`` (Switch Transformer, arXiv:2101.03961, eq. 4 to 6):
experts · Σ_e f_e p_e, f_e and p_e the share of choices and the mean probability of expert e over all tokens
and layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes
from paceline.plan.mesh import Mesh
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Decision

COEFFICIENT = "training.router_aux_loss_coef"
DOCUMENT, MICRO_BATCH = "document", "micro_batch"


@dataclass(frozen=True)
class RouterLoss:
    """``coefficient`` · the balance loss, over each document or over each micro-batch (``scope``)."""

    coefficient: float
    scope: str


@dataclass(frozen=True)
class RouterOptions:
    """What a run does with a mixture's routers. ``loss``: None if its coefficient is 0; ``frozen``: they stay
    as loaded.
    """

    loss: RouterLoss | None
    frozen: bool


def router_options(training: TrainingSection, of_config: float) -> RouterOptions:
    """Return the options as configured. ``of_config``: the coefficient that the model's config asks for."""
    given = training.router_aux_loss_coef
    coefficient = of_config if given is None else given
    loss = RouterLoss(coefficient, training.router_aux_loss_scope) if coefficient else None
    return RouterOptions(loss, training.freeze_router)


def check_router_loss(
    shape: ModelShape | None, loss: RouterLoss | None, mesh: Mesh, *, compiled: bool
) -> Iterator[Diagnostic]:
    """Yield what the balance loss cannot be computed for: other families, parts of documents or of the
    layers on a rank, compiled layers.
    """
    if shape is None or loss is None:
        return
    if shape.family.balance_loss is None:
        yield codes.PLAN_BALANCE_LOSS(
            f"Transformers computes no balance loss of experts for models of type '{shape.model_type}'",
            COEFFICIENT,
            f"{loss.coefficient:g}",
            "remove router_aux_loss_coef",
        )
    for axis, what in (("cp", "a part of each document"), ("pp", "a part of the layers")):
        if getattr(mesh, axis) > 1:
            yield codes.PLAN_BALANCE_LOSS_SPLIT(
                f"the experts' balance loss is over all tokens and layers, but a rank has {what}",
                f"training.parallelism.{axis}_size",
                str(getattr(mesh, axis)),
                f"{axis}_size: 1, or router_aux_loss_coef: 0",
            )
    if compiled:
        yield codes.PLAN_BALANCE_LOSS_SPLIT(
            "the routers' logits cannot be read out of compiled layers, so the balance loss would be lost",
            "training.torch_compile",
            "true",
            "torch_compile: false, or router_aux_loss_coef: 0",
        )


def check_router(shape: ModelShape | None, router: RouterOptions, *, adapters: bool) -> Iterator[Diagnostic]:
    """Yield why no router can be frozen."""
    if router.frozen and (adapters or (shape is not None and shape.mixture is None)):
        why = "only adapters are trained" if adapters else "the model is no mixture of experts"
        yield codes.PLAN_NO_ROUTER("training.freeze_router", "true", why=why)


def router_decisions(shape: ModelShape | None, router: RouterOptions) -> Iterator[Decision]:
    """Yield what the plan says of a mixture's balance."""
    if shape is None or shape.mixture is None:
        return
    loss = router.loss
    if router.frozen:
        yield Decision("training.freeze_router", "on", "routers stay as loaded; gradients pass through them")
    if loss is not None:
        yield Decision(
            "balance loss", f"{loss.coefficient:g}, over each {_WORDS[loss.scope]}", _WHY[loss.scope]
        )
    elif shape.family.balance_loss is not None:
        why = "as in Transformers while output_router_logits is false; router_aux_loss_coef: 0.001 adds it"
        yield Decision("balance loss", "none", why)
    elif shape.buffers:
        why = (
            "this family balances by a bias of its routers, which Transformers never updates: it stays as"
            " loaded, and no loss is added (DeepSeek-V3's sequence-wise loss is not in Transformers)"
        )
        yield Decision("balance loss", "none", why)
    else:
        yield Decision("balance loss", "none", "Transformers computes none for this family")


_WORDS = {DOCUMENT: "document", MICRO_BATCH: "micro-batch"}
_WHY = {
    DOCUMENT: (
        "Transformers' formula on each document, weighted as its loss is: the same under every split of"
        " rows to ranks and micro-batches; fillers do not count; evaluation leaves it out"
    ),
    MICRO_BATCH: (
        "Transformers' and TRL's scope: it depends on how rows are split, so another number of ranks or"
        " another micro-batch trains otherwise; router_aux_loss_scope: document does not"
    ),
}
