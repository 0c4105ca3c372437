"""Rollout sizes: answers per rollout, optimizer steps per rollout, and how answers are generated."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from paceline.config.backend_files.deepspeed.deepspeed_file import batch_of
from paceline.config.registries.evaluation_metrics import written_out
from paceline.config.sections.rollout import GenerationSection, RolloutOptions
from paceline.config.sections.training import TrainingSection
from paceline.core.diagnostics import Diagnostic
from paceline.core.units import human_bytes
from paceline.plan import codes
from paceline.plan.algorithms.spec import AlgorithmSpec, algorithm_spec
from paceline.plan.cost.memory.fits import bytes_by_device
from paceline.plan.hardware.device_kinds import is_accelerator, kind_of
from paceline.plan.hardware.probe import Hardware
from paceline.plan.mesh import BatchSplit
from paceline.plan.model.shape import ModelShape
from paceline.plan.plan import Decision, ModelStates, Plan
from paceline.plan.strategies.spec import strategy_spec
from paceline.plan.strategy_options import DeepSpeedOptions, FsdpOptions
from paceline.plan.workload.local_tensors import SIZES

_KEY = "training.rollout"
MARGIN = 0.9  # share of a rank's memory


@dataclass(frozen=True)
class RolloutSizes:
    """A rollout of ``pieces`` micro-batches on every rank, ``group`` answers to each prompt.

    ``batch``: of an optimizer step; ``passes``: epochs over the rollout.
    """

    batch: BatchSplit
    group: int
    pieces: int
    passes: int

    @property
    def windows(self) -> int:
        """Optimizer steps of one epoch over the rollout."""
        return self.pieces // self.batch.accumulation

    @property
    def answers(self) -> int:
        """Answers of a rollout, over all ranks."""
        return self.pieces * self.batch.micro_batch * self.batch.data_parallel_size


def rollout_sizes(spec: AlgorithmSpec, training: TrainingSection, batch: BatchSplit) -> RolloutSizes:
    """Return the rollout's sizes as configured; ``check_rollout`` checks that they fit together."""
    pieces = (training.rollout or RolloutOptions()).steps_per_generation or batch.accumulation
    return RolloutSizes(batch, spec.group_size(training), pieces, spec.num_passes(training))


def updates_per_pass(training: TrainingSection, data_parallel_size: int) -> int:
    """Return the optimizer steps of one pass over a rollout, by the config's own micro-steps.

    A run that is resumed on other ranks has other micro-steps, and the same rollouts.
    """
    _, steps, _ = batch_of(
        training.deepspeed,
        training.per_device_train_batch_size,
        training.gradient_accumulation_steps,
        data_parallel_size,
    )
    return ((training.rollout or RolloutOptions()).steps_per_generation or steps) // steps


def check_rollout(sizes: RolloutSizes) -> list[Diagnostic]:
    """Return errors if a rollout does not consist of whole groups and whole optimizer steps."""
    batch, group, pieces, answers = sizes.batch, sizes.group, sizes.pieces, sizes.answers
    if pieces % batch.accumulation:
        sizes_text = f"steps_per_generation: {pieces}, gradient accumulation {batch.accumulation}"
        return [
            codes.ROLLOUT_STEPS(
                f"{_KEY}.steps_per_generation",
                sizes_text,
                steps=max(1, round(pieces / batch.accumulation)) * batch.accumulation,
            )
        ]
    if answers % group:
        near = sorted(
            (n for n in range(min(2, answers), answers + 1) if answers % n == 0),
            key=lambda n: (abs(n - group), n),
        )[:2]
        sizes_text = f"{answers} answers per rollout ({batch}), num_generations: {group}"
        return [
            codes.ROLLOUT_GROUPS(
                f"{_KEY}.num_generations", sizes_text, near=" or ".join(map(str, sorted(near)))
            )
        ]
    return []


def rollout_decision(sizes: RolloutSizes) -> Decision:
    """Return the rollout's sizes as a decision of the plan."""
    group, steps = sizes.group, sizes.windows * sizes.passes
    parts = (
        "; ranks hold parts of groups, and a reward function sees its own rank's answers"
        if (sizes.pieces * sizes.batch.micro_batch % group != 0)
        else ""
    )
    return Decision(
        "rollout",
        f"{sizes.answers // group} prompts × {group} answer{'s' if group > 1 else ''}",
        f"then {steps} optimizer step{'s' if steps > 1 else ''} on them; batch sizes count answers{parts}",
    )


def with_generation(plan: Plan, hardware: Hardware) -> Plan:
    """Return the plan with the choice of how sharded weights are gathered for generation.

    Every rank gathers the whole model, or, with ``gather_for_generation`` off, all ranks together gather one
    layer at a time.
    """
    options = any_answers(algorithm_spec(plan.algorithm), plan.config.training, plan.config.generation)
    if options is None or not strategy_spec(plan.strategy).in_parts(plan.mesh, plan.engine):
        return plan
    if options.all_servers and isinstance(plan.engine, (FsdpOptions, DeepSpeedOptions)):
        # the model only scores the few texts that prove a server's weights
        return replace(plan, engine=replace(plan.engine, gather_for_generation=False))
    requested = options.gather_for_generation
    need, room, words = _room_to_generate(plan, hardware, options.generation_rows)
    gathers = requested if requested is not None else need is None or need < MARGIN * room
    reason = (
        words if requested is None else f"{words}; {_KEY}.gather_for_generation: {str(requested).lower()}"
    )
    choice = (
        "the complete model on every rank"
        if gathers
        else "all ranks generate together, gathering one layer at a time"
    )
    engine = plan.engine
    if not gathers and isinstance(engine, (FsdpOptions, DeepSpeedOptions)):
        engine = replace(engine, gather_for_generation=False)
    return replace(
        plan, engine=engine, decisions=(*plan.decisions, Decision("answers are written", choice, reason))
    )


def no_graphs(plan: Plan) -> str | None:
    """Return why a step of decoding is not captured in a graph of kernels, or None."""
    spec = strategy_spec(plan.strategy)
    if kind_of(plan.device).graphs and not spec.whole_modules:
        return f"{spec.engine_name} takes part in every layer's forward"
    if kind_of(plan.device).graphs and plan.mesh.tp > 1:
        return "ranks of a tensor-parallel group exchange activations in every layer"
    return graph_obstacle(plan.device, plan.shape)


def graph_obstacle(device: str, shape: ModelShape | None) -> str | None:
    """Return why no layout of this model captures its decoding on ``device``, or None."""
    if not kind_of(device).graphs:
        return f"kernels of {kind_of(device).label} are not captured in graphs"
    if shape is not None and shape.experts:
        return "the host takes part in a mixture's choice of experts"
    if shape is not None and shape.carries:
        return "layers pass a state from token to token"
    if shape is not None and shape.rope_by_length:
        return "the host chooses the rotary frequencies by length"
    return None


def decoding_decision(plan: Plan) -> Decision | None:
    """Return the plan's line on decoding on an accelerator; None if the run generates no answers there."""
    options = any_answers(algorithm_spec(plan.algorithm), plan.config.training, plan.config.generation)
    if options is None or options.all_servers or not is_accelerator(plan.device):
        return None
    if strategy_spec(plan.strategy).in_parts(plan.mesh, plan.engine) and _together(plan):
        return Decision("decoding", "kernel by kernel", "every forward gathers the layers of all ranks")
    obstacle = no_graphs(plan)
    if plan.shape is not None and plan.shape.carries:
        growing = "keys and values grow by the token, and prompts of one length are read together"
        return Decision("decoding", "kernel by kernel", f"{obstacle}; {growing}")
    fixed = "keys and values in fixed buffers, the host reads how many answers are left every few tokens"
    if obstacle is None:
        return Decision("decoding", "a step is one captured graph", fixed)
    return Decision("decoding", "kernel by kernel", f"{obstacle}; {fixed}")


def _together(plan: Plan) -> bool:
    engine = plan.engine
    return isinstance(engine, (FsdpOptions, DeepSpeedOptions)) and not engine.gather_for_generation


def gathered_problems(plan: Plan, hardware: Hardware) -> list[Diagnostic]:
    """Return an error if every rank must gather the whole model, as the config says, but cannot hold it.

    Only exactly known needs count: the weights and a rank's states.
    """
    options = plan.config.training.rollout or RolloutOptions()
    shape, states = plan.shape, plan.memory and plan.memory.largest
    if (
        not (
            algorithm_spec(plan.algorithm).on_policy
            and strategy_spec(plan.strategy).in_parts(plan.mesh, plan.engine)
        )
        or shape is None
        or not states
        or not options.gather_for_generation
        or options.all_servers
    ):
        return []
    weights = shape.num_parameters * SIZES[plan.precision.compute] / plan.mesh.tp
    card = hardware.memory_bytes / (1 if is_accelerator(hardware.device) else max(1, plan.ranks_per_node))
    held = bytes_by_device(plan, ModelStates(states.parameters, 0, states.optimizer)).card
    if weights + held <= card:
        return []
    needs = f"weights {human_bytes(weights)} and states {human_bytes(held)}, of {human_bytes(card)}"
    return [
        codes.ROLLOUT_GATHER_ROOM(
            "every rank gathers the complete model",
            f"{_KEY}.gather_for_generation",
            needs,
            "set false, or leave it out",
        )
    ]


def server_cards(plan: Plan) -> list[list[int]]:
    """Return the cards of each server that the run starts, as numbers among the visible ones; none on
    CPUs.
    """
    start = (plan.config.training.rollout or RolloutOptions()).start
    if start is None or not is_accelerator(plan.device):
        return [[] for _ in range(start.count if start else 0)]
    size, first = start.tensor_parallel_size, 0 if start.sleep else plan.ranks_per_node
    return [list(range(first + i * size, first + (i + 1) * size)) for i in range(start.count)]


def start_problems(plan: Plan, hardware: Hardware) -> list[Diagnostic]:
    """Return errors where the servers that the run starts lack cards, or memory beside the model."""
    start = (plan.config.training.rollout or RolloutOptions()).start
    if start is None or not is_accelerator(plan.device):
        return []
    cards = plan.ranks_per_node if start.sleep else hardware.num_devices
    last = max(max(own) for own in server_cards(plan))
    if last >= cards:
        needed = start.count * start.tensor_parallel_size
        remedy = f"set launch.nproc: {hardware.num_devices - needed}"
        if start.sleep or needed >= hardware.num_devices:
            remedy = "lower count or tensor_parallel_size"
        cards_needed = (
            f"{needed} for servers and {plan.ranks_per_node} for training, of {hardware.num_devices}"
        )
        return [codes.ROLLOUT_START_CARDS(f"{_KEY}.start", cards_needed, remedy=remedy)]
    states = plan.memory and plan.memory.largest
    if not start.sleep or not states:
        return []
    held = bytes_by_device(plan, ModelStates(states.parameters, 0, states.optimizer)).card
    taken = start.gpu_memory_utilization * hardware.memory_bytes
    if held + taken <= hardware.memory_bytes:
        return []
    parts = (
        f"states {human_bytes(held)}, a server {human_bytes(taken)}, of {human_bytes(hardware.memory_bytes)}"
    )
    return [codes.ROLLOUT_START_ROOM(f"{_KEY}.start.gpu_memory_utilization", parts)]


def start_decision(plan: Plan) -> Decision | None:
    """Return which cards the servers take that the run starts."""
    start = (plan.config.training.rollout or RolloutOptions()).start
    if start is None:
        return None
    own = [", ".join(map(str, cards)) for cards in server_cards(plan)]
    where = f"on cards {' | '.join(own)}" if any(own) else "on CPUs"
    shared = "; they sleep while the model is trained (memory unproven)" if start.sleep and any(own) else ""
    share = f"{start.gpu_memory_utilization:g} of a card's memory each{shared}" if any(own) else ""
    return Decision("generation servers", f"{start.count} of vLLM {where}", share)


def _room_to_generate(plan: Plan, hardware: Hardware, rows: int) -> tuple[float | None, float, str]:
    """Return (bytes needed on a rank to generate with the whole model, bytes available, text).

    Needed: weights, KV cache of ``rows`` answers, and the rank's states.
    """
    room = hardware.memory_bytes / (1 if is_accelerator(hardware.device) else max(1, plan.ranks_per_node))
    shape, states = plan.shape, plan.memory and plan.memory.largest
    if shape is None or not states:
        return None, room, "the model's size is unknown"
    size = SIZES[plan.precision.compute]
    weights = shape.num_parameters * size / plan.mesh.tp
    cache = 2 * shape.layers * shape.kv_heads * shape.head_dim * plan.seq_len * rows * size / plan.mesh.tp
    kept = replace(states, counters=0)
    held = float(kept.total if (hardware.device == "cpu") else bytes_by_device(plan, kept).card)
    parts = f"weights {human_bytes(weights)}, {rows} answers {human_bytes(cache)}, states {human_bytes(held)}"
    return weights + cache + held, room, f"the gathered model would use {parts} of {human_bytes(room)}"


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
    """Return how the run generates answers: in training, or else at evaluations."""
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


def _most_rows(limit: int | None, split: float | None) -> int | None:
    """Return the largest number of evaluation rows, if the config sets it."""
    held_out = int(split) if isinstance(split, int) else None
    limits = [rows for rows in (limit, held_out) if rows is not None]
    return min(limits) if limits else None
