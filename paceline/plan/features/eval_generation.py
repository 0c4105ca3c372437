"""Answers at evaluations (``training.eval_generate``): how they are generated, and what that costs."""

from __future__ import annotations

import math

from paceline.config.registries.evaluation_metrics import written_out
from paceline.config.sections.generation import GenerationSection
from paceline.config.sections.rollout import RolloutOptions
from paceline.config.sections.training import TrainingSection
from paceline.core.units import human_bytes
from paceline.plan.algorithms.spec import AlgorithmSpec
from paceline.plan.plan import Decision, Plan
from paceline.plan.workload.state_bytes import SIZES


def answers_at_evaluation(training: TrainingSection, generation: GenerationSection) -> RolloutOptions | None:
    """Return how evaluations generate answers; None if they generate none."""
    if not training.eval_generate:
        return None
    return RolloutOptions(
        max_completion_length=generation.max_new_tokens,
        temperature=generation.temperature,
        top_p=generation.top_p,
        top_k=generation.top_k,
        generation_rows=training.per_device_eval_batch_size,
    )


def any_answers(
    spec: AlgorithmSpec, training: TrainingSection, generation: GenerationSection
) -> RolloutOptions | None:
    """Return how the run generates answers, in training or, if there it does not, at evaluations."""
    return spec.generation(training) or answers_at_evaluation(training, generation)


def evaluation_decision(plan: Plan) -> Decision | None:
    """Return what each evaluation generates, and its cost; None if it generates nothing."""
    training = plan.config.training
    options = answers_at_evaluation(training, plan.config.generation)
    if options is None:
        return None
    most = _most_rows(training.eval_generate_rows, plan.config.data.validation_split)
    rows, longest, ranks = (
        options.generation_rows,
        options.max_completion_length,
        plan.batch.data_parallel_size,
    )
    choice = (
        "answers to all evaluation rows" if most is None else f"answers to up to {most:,} evaluation rows"
    )
    cost = (
        f"{rows} at a time on each of {ranks} rank{'s' if ranks > 1 else ''}, up to {longest:,} tokens each"
    )
    if most is not None:
        forwards = math.ceil(math.ceil(most / ranks) / rows) * longest
        cost += f": at most {forwards:,} forwards of one token a rank"
    else:
        cost += "; eval_generate_rows limits the rows"
    shape = plan.shape
    if shape is not None:
        size = SIZES[plan.precision.compute] / plan.mesh.tp
        cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * (plan.seq_len + longest) * rows * size
        cost += f", keys and values up to {human_bytes(cache)}"
    names = ", ".join(written_out(training.eval_metrics))
    return Decision("eval_generate", choice, f"at each evaluation, {cost}; metrics: {names}")


def _most_rows(given: int | None, split: float | None) -> int | None:
    """Return the most rows of an evaluation, where the config fixes it."""
    held_out = int(split) if isinstance(split, int) else None
    known = [one for one in (given, held_out) if one is not None]
    return min(known) if known else None
