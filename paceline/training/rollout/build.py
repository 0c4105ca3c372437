"""Build rollouts from a plan: engine, rewards, sampling, and how answers are split into optimizer steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paceline.algorithms.rewards.scoring import RewardSpec, Scorer
from paceline.config.sections.rollout import RolloutOptions
from paceline.config.sections.training import TrainingSection
from paceline.core.errors import ConfigError
from paceline.core.json_types import JsonObject
from paceline.data.chat_template.encode import Encoder
from paceline.data.packed_source import PackedSource
from paceline.data.prepare.prepare import Prepared
from paceline.data.token_table import TokenTable
from paceline.data.tokenizer.load import TokenizerSpec, open_tokenizer
from paceline.generation.engine import GenerationEngine, RolloutSampling
from paceline.generation.local import LocalEngine
from paceline.models.special_tokens import end_tokens
from paceline.plan.algorithms.rollout import no_graphs, updates_per_pass
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.plan import Plan
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Role
from paceline.protocols.rollout import OnPolicyObjective
from paceline.protocols.shard import ShardReader
from paceline.runtime.device.host import threads_per_rank
from paceline.runtime.process_group.world import World
from paceline.strategies.model_handle import Handles
from paceline.strategies.strategy import Runner, Strategy
from paceline.training.loop.window_source import BatchLayout, Epochs
from paceline.training.preflight.weight_ways import SentPolicy
from paceline.training.rollout.generate import Limits, RewardModel, RolloutGenerator
from paceline.training.rollout.layout import AnswerRows, PromptSampler, RolloutLayout
from paceline.training.rollout.rollout_windows import RolloutWindows
from paceline.training.rollout.server import RolloutServers
from paceline.training.rollout.weight_entries import Sharing
from paceline.training.rollout.weight_probe import GapBounds, ProvedEngine

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_ROWS_NAMED = 5


def rollout_options(training: TrainingSection, plan: Plan) -> JsonObject:
    """Return the algorithm's arguments: its own section, and the rollout options that its loss depends on."""
    spec = algorithm_spec(plan.algorithm)
    section = spec.arguments(spec.options_of(training))
    rollout = training.rollout or RolloutOptions()
    return {
        **section,
        "max_completion_length": rollout.max_completion_length,
        "updates_per_pass": updates_per_pass(training, plan.batch.data_parallel_size),
        "reference": plan.reference,
        "reward_model": Role.REWARD.value in plan.models,
    }


def sampling_exact(options: RolloutOptions, compute: str) -> bool:
    """Whether the log-probabilities of sampling can replace those that training would compute.

    True if requested, or if they differ only in the order of additions.
    """
    if options.old_logprobs == "auto":
        return not options.all_servers and compute in ("float32", "float64")
    return options.old_logprobs == "sampling"


def largest_gap(training: TrainingSection, compute: str) -> float | None:
    """Return the mean difference of log-probabilities, sampled and trained, above which a run ends, in nats.

    None if a server's log-probabilities are those after top-k and top-p, and the config sets no number.
    """
    options = training.rollout or RolloutOptions()
    cut = bool(options.all_servers) and (options.top_p < 1.0 or options.top_k > 0)
    if options.max_sampling_gap is not None or cut:
        return options.max_sampling_gap
    return 0.02 if compute in ("float32", "float64") else 0.5


@dataclass
class RolloutSetup:
    """Builds the windows of an on-policy run.

    ``training`` is the config's section; a server reads weights from ``weights_folder``. ``stop_requested``:
    whether a signal has told this rank to stop.
    """

    world: World
    plan: Plan
    training: TrainingSection
    prepared: Prepared
    weights_folder: Path
    runner: Runner
    algorithm: OnPolicyObjective
    handles: Handles
    layout: BatchLayout
    stop_requested: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self.options = self.training.rollout or RolloutOptions()
        self.compute: torch.dtype = getattr(torch, self.plan.precision.compute)
        updates = updates_per_pass(self.training, self.plan.batch.data_parallel_size)
        group = algorithm_spec(self.plan.algorithm).group_size(self.training)
        self.rollout_layout = RolloutLayout(self.layout, group, updates, self.algorithm.passes)
        specs = [RewardSpec(r.name, r.weight, dict(r.options)) for r in self.options.rewards]
        self.scorer = Scorer(
            specs,
            on_error=self.options.on_reward_error,
            timeout_seconds=self.options.reward_timeout,
            allow_code=self.options.allow_code_execution,
            allow_unsandboxed_code=self.options.allow_unsandboxed_code,
            programs_at_once=threads_per_rank(self.world.env.local_world_size),
        )
        self.server = self._server() if self.options.all_servers else None

    def rows(self, prompts: PackedSource) -> AnswerRows:
        """Return the rows that epochs are counted by."""
        return AnswerRows(prompts, self.rollout_layout, self.training.dataloader_drop_last)

    def windows(
        self,
        prompts: PackedSource,
        epochs: Epochs,
        start: int,
        reader: ShardReader | None,
        drawn: JsonObject | None = None,
    ) -> RolloutWindows:
        """Return the windows from global step ``start`` on.

        Raises ConfigError for rows that a reward cannot use. ``reader`` is the checkpoint saved at that step,
        ``drawn`` its state of the prompts.
        """
        self.check_rows(prompts.table, "data.train")
        self.scorer.columns.update(self.columns_of(prompts.table))
        if self.prepared.eval is not None:
            self.check_rows(self.prepared.eval, "data.eval")
            self.scorer.columns.update(self.columns_of(self.prepared.eval))
        plan, options = self.plan, self.options
        coordinates = plan.mesh.coordinates(self.world.rank)
        dtype = torch.float64 if plan.precision.master == "float64" else torch.float32
        return RolloutWindows(
            world=self.world,
            runner=self.runner,
            algorithm=self.algorithm,
            handles=self.handles,
            prompts=prompts,
            draws=PromptSampler(
                prompts, self.rollout_layout.groups, again=options.max_redraws > 0, saved=drawn or {}
            ),
            generator=self.generator(dtype),
            sampling=RolloutSampling(options.temperature, options.top_p, options.top_k),
            limits=Limits(options.max_completion_length, plan.seq_len),
            layout=self.rollout_layout,
            epochs=epochs,
            start=start,
            seed=self.training.seed,
            pad_id=self.prepared.pad_token_id,
            dtype=dtype,
            is_group_leader=not (coordinates.pp or coordinates.cp or coordinates.tp),
            shown=options.num_samples_shown,
            filter_groups=options.filter_groups,
            max_redraws=options.max_redraws,
            sampling_exact=sampling_exact(options, plan.precision.compute),
            reader=reader,
        )

    def generator(self, dtype: torch.dtype) -> RolloutGenerator:
        """Return the generator, which also scores answers."""
        policy = self.handles[self.algorithm.trains[0]]
        tokenizer = open_tokenizer(TokenizerSpec(str(self.prepared.tokenizer_path)))
        return RolloutGenerator(
            self.runner.strategy,
            policy,
            tokenizer,
            self.scorer,
            self.engine,
            self.reward_model(dtype, tokenizer),
            self.server,
        )

    def check_rows(self, table: TokenTable, name: str) -> None:
        """Raise ConfigError, the same on every rank, for rows that a reward cannot use.

        Collective if a reward checks rows.
        """
        world = self.world
        share = range(world.rank, len(table), world.world_size)
        for check in self.scorer.row_checks:
            wrong = check.unusable((f"{name} row {table.source_row[i] + 1}", table.facts(i)) for i in share)
            of_ranks = world.all_gather_json((len(wrong), wrong[:_ROWS_NAMED]))
            count = sum(many for many, _ in of_ranks)
            first = [line for _, lines in of_ranks for line in lines]
            if count:
                more = f"; and {count - _ROWS_NAMED} more" if count > _ROWS_NAMED else ""
                text = "; ".join(first[:_ROWS_NAMED]) + more
                raise ConfigError(check.finding("training.rollout.rewards", text))

    def columns_of(self, table: TokenTable) -> set[str]:
        """Return the column names of all rows. Collective if a reward is the user's own."""
        if not self.scorer.calls_own:
            return set()
        share = range(self.world.rank, len(table), self.world.world_size)
        names_here = {name for document in share for name in table.facts(document)} - {"prompt"}
        return {name for names in self.world.all_gather_json(sorted(names_here)) for name in names}

    def _server(self) -> RolloutServers:
        handle = self.handles[self.algorithm.trains[0]]
        root = handle.root
        return RolloutServers(
            self.options.all_servers,
            self.world,
            end_tokens(root.hf, self.prepared.stop_token_ids),
            root.hf.config.get_text_config().vocab_size,
            self.plan.seq_len,
            self.weights_folder,
            self.compute,
            self.options.verify_weights,
            self.options.weights,
            SentPolicy(self.plan.adapter, self.plan.device),
            Sharing.of(self.runner.strategy, handle),
            self.options.start is not None and self.options.start.sleep,
            self.stop_requested,
        )

    def reward_model(self, dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase) -> RewardModel | None:
        """Return the reward model's scorer, if it is among the rewards."""
        if Role.REWARD not in self.handles:
            return None
        rows, pad = self.layout.micro_batch, self.prepared.pad_token_id
        closing = Encoder(tokenizer, "assistant" if tokenizer.is_fast else "all").closing()
        return RewardModel(self.runner, self.handles, rows, pad, dtype, closing, self.plan.seq_len)

    def engine(self, root: RootModule) -> GenerationEngine:
        """Return the engine of the local model, gathered by ``Strategy.generating``."""
        engine = local_engine(root, self.prepared, self.runner.strategy, self.options.generation_rows)
        if not self.options.verify_weights:
            return engine
        return ProvedEngine(engine, root, self.world, GapBounds.of(self.compute).most)


def local_engine(root: RootModule, prepared: Prepared, strategy: Strategy, rows: int) -> LocalEngine:
    """Return an engine over this process's model, as ``Strategy.generating`` yields it; it answers ``rows``
    prompts together.
    """
    return LocalEngine(
        root.hf,
        pad_id=prepared.pad_token_id,
        stop_ids=end_tokens(root.hf, prepared.stop_token_ids),
        rows=rows,
        agree=strategy.world.any if strategy.collective_decoding else None,
        computing=root.computing,
        no_graphs=no_graphs(strategy.plan),
        note=partial(root.note, "decoding"),
    )
