"""Build a trainer from a plan: every component gets explicit values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, cast

import numpy as np
from numpy.typing import NDArray

from paceline.algorithms.algorithm import Algorithm, WithBalanceLoss, algorithm_class
from paceline.checkpoint.checkpointer import AsyncCheckpointer, Checkpointer
from paceline.checkpoint.export.untrained_tensors import STATE_KEY
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.node_local.shared_disks import Disks
from paceline.checkpoint.object_store.background_upload import Uploads, open_uploads
from paceline.checkpoint.save.retention import RetentionRule, being_read
from paceline.config.registries.evaluation_metrics import evaluation_metrics
from paceline.config.schema import Config
from paceline.config.sections.rollout import RolloutOptions
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import CheckpointError, ConfigError, DataError
from paceline.core.json_types import JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.data.images.load import ImageLoader, image_loader
from paceline.data.packed_source import PackedSource
from paceline.data.preflight.check_sets import check_feeds
from paceline.data.prepare.prepare import Prepared, check_token_range
from paceline.data.rows.kinds.base import row_kind
from paceline.data.token_table import TokenTable
from paceline.models.heads.sequence_classification import SCALAR_ROLES, Classes
from paceline.plan.algorithms.rollout import answers_at_evaluation
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.features.experts import router_options
from paceline.plan.features.vision import rates_of_parts
from paceline.plan.model.family import family_of, text_part
from paceline.plan.model.files.folder_check import classes_of_head
from paceline.plan.model.shape import config_coefficient
from paceline.plan.plan import Plan
from paceline.plan.timeouts import STEP
from paceline.protocols.roles import Role
from paceline.protocols.rollout import OnPolicyObjective
from paceline.runtime.device.host import configure_malloc, return_freed_memory
from paceline.runtime.process_group.background_exchange import LateFlag, StoreRanks
from paceline.runtime.process_group.world import World
from paceline.runtime.random_seed import seed_for
from paceline.strategies.model_handle import Handles
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Runner, Strategy
from paceline.strategies.window.runner import make_runner
from paceline.training import codes
from paceline.training.checkpointing.contents import adapter_of, kept_files, same_base
from paceline.training.checkpointing.resume import ResumeCandidates
from paceline.training.checkpointing.saver import Published, RunCheckpointer, RunContents
from paceline.training.evaluation import answers_measured, evaluate
from paceline.training.loop.intervals import Cadence
from paceline.training.loop.lr_schedules import learning_rate_schedule
from paceline.training.loop.nonfinite_trace import NonFiniteTracer
from paceline.training.loop.spike_watch import SpikeRule
from paceline.training.loop.throughput import Throughput
from paceline.training.loop.time_bands import BandClock
from paceline.training.loop.train_state import TrainState, best_rule
from paceline.training.loop.trainer import ROLLOUT, Hooks, Trainer
from paceline.training.loop.window_source import (
    BatchLayout,
    CountedRows,
    Epochs,
    Evaluation,
    Prefetcher,
    RowNames,
    RunComponents,
    Windows,
    WindowSource,
    count_epochs,
)
from paceline.training.profiling.recorder import profile_of
from paceline.training.rank_checks import checks_of_first_windows
from paceline.training.rollout.build import RolloutSetup, largest_gap, rollout_options
from paceline.training.rollout.on_policy_distillation import own_answers
from paceline.training.run.class_labels import read_classes
from paceline.training.run.model_factories import Models
from paceline.training.run.reference_logprobs import compute_reference_logprobs


class WayBack(Protocol):
    """The way to a run's last checkpoint while it trains."""

    def find(self) -> ResumeCandidates | None:
        """Open it; None: there is none. Collective."""
        ...

    def went(self, resumes: ResumeCandidates, step: int) -> None:
        """Record that the run goes on from it, at ``step``. Collective."""
        ...


@dataclass
class RunBuilder:
    """Builds the trainer of one run on one rank.

    ``former`` returns a reader of the checkpoint before a damaged one, or raises its error. ``disks``: the
    ranks that share each run directory (None: all share one). While building, ``columns`` gets extra columns
    per split, ``classes`` those of a classification, ``notes`` messages for the log. ``stop_requested``:
    whether a signal has told this rank to stop; ``back``: the way to the run's last checkpoint.
    """

    world: World
    plan: Plan
    config: Config
    prepared: Prepared
    run: RunDir
    reader: CheckpointReader | None = None
    former: Callable[[CheckpointError], CheckpointReader] | None = None
    columns: Mapping[str, Mapping[str, NDArray[np.generic]]] = field(default_factory=dict)
    classes: Classes | None = None
    notes: list[str] = field(default_factory=list)
    disks: Disks | None = None
    stop_requested: Callable[[], bool] = lambda: False
    back: WayBack | None = None

    def build(self, hooks: Hooks, published: Published) -> Trainer:
        """Return this rank's trainer; ``published`` is called after each durable checkpoint. Collective."""
        parts = self.parts()
        return self.trainer(parts, hooks, self.checkpointer(parts, hooks, published))

    # --- models, algorithm, windows

    @property
    def models(self) -> Models:
        """The factories of the roles' models."""
        return Models(self.plan, self.config, self.prepared, self.world.device, self.classes, self._restored)

    def _restored(self, role: Role) -> Collection[str]:
        """Return the parameters of a trained role that the checkpoint to resume from holds."""
        spec = algorithm_spec(self.plan.algorithm)
        initial = (  # its log-probabilities are computed before the checkpoint is imported
            self.plan.reference == "cached" and spec.model_named(self.config.training, "reference") is None
        )
        return () if self.reader is None or initial else self.reader.parameters(role.value)

    def parts(self) -> RunComponents:
        """Build model, strategy, algorithm and data; restore the checkpoint to resume from. Collective."""
        plan, t, spec = self.plan, self.config.training, algorithm_spec(self.plan.algorithm)
        if self.world.device.type == "cpu":
            return_freed_memory()
        # Algorithm and strategy, with what they need to know of the data
        if row_kind(spec.rows).classes:
            labels = read_classes(self.prepared, spec, t, classes_of_head(self.config.model))
            self.classes, self.columns = labels.classes, labels.columns
            self.notes.append(f"{'classes':<9} {labels.words}")
        for table in filter(None, (self.prepared.train, self.prepared.eval)):
            numbers = {name: values.tolist() for name, values in table.columns.items()}
            found = spec.check_documents(t, numbers)
            if wrong := [finding for finding in found if finding.severity is Severity.ERROR]:
                raise DataError(*wrong)
        algorithm = self.algorithm()
        strategy = make_strategy(plan.strategy, self.world, plan)
        runner = make_runner(strategy)
        generation = spec.generation(t)
        if (generation is not None or t.eval_generate) and not strategy.can_generate:
            raise ConfigError(
                codes.STRATEGY_PIPELINE_GENERATION(
                    "training.distributed_strategy", plan.strategy, strategy=plan.strategy
                )
            )
        handles = self._handles(runner, algorithm)
        # Rows, and a row of the embedding for each of their tokens
        source = self.source(train=True)
        embedding = handles[algorithm.trains[0]].root.hf.get_input_embeddings()
        if findings := check_token_range(self.prepared, embedding.num_embeddings):
            raise DataError(*findings)
        layout = self.batch_layout(strategy, plan.batch.micro_batch, plan.batch.accumulation)
        # Epochs are counted before the state is restored; windows begin at the restored step
        if spec.on_policy:
            rollouts = self.rollouts(runner, cast(OnPolicyObjective, algorithm), handles, layout)
            epochs = self.epochs(rollouts.rows(source), layout)
            state = self.restore(strategy, handles, algorithm)
            drawn = {} if self.reader is None else as_object(self.reader.state.get("windows"))
            answers = rollouts.windows(source, epochs, state.step, self.reader, drawn)
            windows: Windows = answers
            evaluated: Evaluation = answers.evaluate
        else:
            epochs = self.epochs(source, layout)
            state = self.restore(strategy, handles, algorithm)
            others = algorithm.window_means.rows if algorithm.window_means is not None else ""
            rows = WindowSource(
                source, layout, epochs, state.step, Prefetcher.of(t, self.world.device), others
            )
            windows, evaluated = rows, self.evaluated(runner, handles, algorithm)
            if generation is not None:
                policy = handles[algorithm.trains[0]]
                # Wraps the data's own windows: the order and the state stay theirs.
                windows = own_answers(rows, source, plan, t, self.prepared, strategy, policy)
        # Bring each engine into the state it has after a first step (contract 9)
        filler = windows.filler()
        for role in algorithm.trains:
            strategy.warm_up(handles[role], filler, algorithm)
        return RunComponents(runner, algorithm, handles, windows, epochs, state, evaluated)

    def _handles(self, runner: Runner, algorithm: Algorithm) -> Handles:
        """Build the models, trained and frozen; a cached reference is computed before any weight changes."""
        strategy = runner.strategy
        factories = {role: self.models.trained(role) for role in algorithm.trains}
        handles = {
            role: strategy.prepare(role, build, self.plan.optimizer) for role, build in factories.items()
        }
        for role in algorithm.frozen:
            # After the trained ones, in one order on every rank: preparing is collective.
            handles[role] = strategy.prepare(role, self.models.frozen(role), None)
        if self.world.device.type == "cpu":
            configure_malloc()
        if algorithm.compares is not None:
            for root in handles[Role.POLICY].roots:
                root.compare_with(handles[Role.TEACHER].root, algorithm.compares)
        if self.plan.reference == "cached":
            self.columns, note = compute_reference_logprobs(self, runner, handles, factories[Role.POLICY])
            self.notes.append(f"{'reference':<9} {note}")
        return handles

    def algorithm(self) -> Algorithm:
        """Return the algorithm, with the balance loss of a mixture's experts if there is one."""
        plain = algorithm_class(self.plan.algorithm)(**self.algorithm_options())
        requested = config_coefficient(text_part(self.hf_config(plain.trains[0])))
        loss = router_options(self.config.training, requested).loss
        return plain if loss is None else cast(Algorithm, WithBalanceLoss(plain, loss))

    def algorithm_options(self) -> JsonObject:
        """Return the algorithm's own section of ``training``, with what the plan decides about it."""
        spec = algorithm_spec(self.plan.algorithm)
        if spec.on_policy:
            return rollout_options(self.config.training, self.plan)
        options = spec.arguments(spec.options_of(self.config.training))
        # Where the reference comes from is decided by the plan, not by the section.
        return {**options, "reference": self.plan.reference} if self.plan.reference else options

    def rollouts(
        self, runner: Runner, algorithm: OnPolicyObjective, handles: Handles, layout: BatchLayout
    ) -> RolloutSetup:
        """Return the builder of an on-policy algorithm's windows."""
        folder, training = self.run.rollout_weights, self.config.training
        where = self.world, self.plan, training, self.prepared, folder
        return RolloutSetup(*where, runner, algorithm, handles, layout, self.stop_requested)

    def source(self, *, train: bool, shuffle: bool | None = None) -> PackedSource:
        """Return the rows of a split; by default training rows are shuffled and others are in table order."""
        table = self.prepared.train if train else self.prepared.eval
        assert table is not None
        t = self.config.training
        source = PackedSource(
            table,
            seq_len=self.plan.seq_len,
            packing=self.plan.packing and train,
            seed=t.seed if t.data_seed is None else t.data_seed,
            pad_token_id=self.prepared.pad_token_id,
            shuffle=train if shuffle is None else shuffle,
            images=self.images(table),
        )
        source.columns.update(self.columns.get("train" if train else "eval", {}))
        return source

    def images(self, table: TokenTable) -> ImageLoader | None:
        """Return what makes the pixels of a table's pictures; None where rows have none."""
        settings = self.prepared.images
        if table.images is None or settings is None:
            return None
        return image_loader(table.images, settings, self.config, self.prepared.path)

    @staticmethod
    def batch_layout(strategy: Strategy, micro_batch: int, accumulation: int) -> BatchLayout:
        return BatchLayout(
            micro_batch, accumulation, strategy.data_parallel_rank, strategy.data_parallel_size
        )

    def epochs(self, source: CountedRows, layout: BatchLayout) -> Epochs:
        """Return the epochs of the run. Raises DataError if the data cannot fill a single step."""
        t, rows = self.config.training, source.num_rows(0)
        epochs = count_epochs(
            source, layout.global_batch, t.num_train_epochs, t.max_steps, t.dataloader_drop_last
        )
        if epochs.total_steps == 0:
            raise DataError(
                codes.TRAINING_NO_STEPS("training.dataloader_drop_last", f"{rows} rows; {self.plan.batch}")
            )
        if findings := check_feeds(rows, layout.dp_size):
            raise DataError(*findings)
        return epochs

    def restore(self, strategy: Strategy, handles: Handles, algorithm: Algorithm) -> TrainState:
        """Load weights, optimizer state and position from the checkpoint, or return a fresh state.

        Collective.
        """
        if self.reader is None:
            return TrainState()
        while True:
            with being_read(self.reader.path):  # the run that wrote it may prune meanwhile
                for role in algorithm.trains:
                    same_base(self.reader.state, adapter_of(handles[role].root), role.value)
                    strategy.import_state(handles[role], self.reader)
                try:
                    self.reader.verify_reads()
                    break
                except CheckpointError as error:
                    if self.former is None:
                        raise
                    damage = error
            # Everything is loaded again from the one before: a half of each would be no state.
            self.reader = self.former(damage)
        algorithm.load_state(as_object(self.reader.state.get("algorithm")))
        return TrainState.from_json(as_object(self.reader.state["train"]))

    def go_back(self, parts: RunComponents) -> tuple[TrainState, WindowSource] | None:
        """Load the run's last checkpoint; return its state, and the windows from there on. None: there is no
        checkpoint. Collective.
        """
        assert self.back is not None and isinstance(parts.windows, WindowSource)
        if (resumes := self.back.find()) is None:
            return None
        self.reader, self.former = resumes.reader, resumes.former
        state = self.restore(parts.runner.strategy, parts.handles, parts.algorithm)
        self.back.went(resumes, state.step)
        return state, parts.windows.starting(state.step)

    # --- evaluation

    def evaluated(self, runner: Runner, handles: Handles, algorithm: Algorithm) -> Evaluation:
        """Return the evaluation function for an algorithm that trains on rows."""
        t = self.config.training
        layout = self.batch_layout(runner.strategy, t.per_device_eval_batch_size, 1)
        prefetcher = Prefetcher.of(t, self.world.device)
        return lambda source: evaluate(runner, handles, algorithm, source, layout, prefetcher)

    def evaluation(
        self, parts: RunComponents, report: Callable[[Diagnostic], None]
    ) -> Callable[[], dict[str, float]] | None:
        """Return the evaluation function, or None if the run does not evaluate."""
        t = self.config.training
        if self.prepared.eval is None or (t.eval_strategy == "no" and not t.eval_on_start):
            return None
        rows = partial(parts.evaluate, self.source(train=False))
        options = answers_at_evaluation(t, self.config.generation)
        if options is None:
            return rows
        policy = parts.handles[parts.algorithm.trains[0]]
        answers, words = answers_measured(
            self.plan, t, options, self.prepared, parts.runner.strategy, policy, report
        )
        self.notes.append(f"{'answers':<9} {words}")
        return lambda: {**rows(), **answers()}

    # --- checkpoints

    def checkpointer(self, parts: RunComponents, hooks: Hooks, published: Published) -> RunCheckpointer:
        """Return the saves of the run, during training if the plan says so, and to object storage too.

        Also with save_strategy ``no``, since a stop saves.
        """
        t, exported = self.config.training, parts.algorithm.trains[0]
        before = {} if self.reader is None else as_object(self.reader.state.get(STATE_KEY))
        contents = RunContents(
            parts,
            self.plan,
            self.prepared,
            self.hf_config(exported),
            base=partial(kept_files, self.config.model, self.prepared.tokenizer_path),
            carried=partial(self.models.carried, exported, before),
        )
        # Saves beside training agree by the store: their collectives must not mix with those of training.
        ranks = StoreRanks.open(self.world) if self.plan.save_async else self.world
        checkpointer = Checkpointer(
            self.run, ranks, t.save_total_limit, every=t.save_keep_every, disks=self.disks
        )
        return RunCheckpointer(
            contents,
            checkpointer,
            published,
            keep_best=t.load_best_model_at_end,
            beside=AsyncCheckpointer(checkpointer, ranks, self.world.device)
            if self.plan.save_async
            else None,
            uploads=None if t.checkpoint_url is None else self._uploads(t.checkpoint_url),
            note=hooks.note,
        )

    def _uploads(self, url: str) -> Uploads:
        t = self.config.training
        rule = RetentionRule(t.save_total_limit, t.save_keep_every)
        uploads = open_uploads(url, self.run, StoreRanks.open(self.world, "upload"), rule)
        of_this_run = self.reader is not None and self.reader.path.parent == self.run.checkpoints
        if self.reader is not None and of_this_run and (self.disks is None or self.disks.are_one):
            uploads.resumed(self.reader.path)
        return uploads

    def hf_config(self, role: Role) -> JsonObject:
        """Return ``config.json`` of the trained model.

        Transformers' sequence classification reads the last token that is not padding, so scalar heads get no
        padding token that also ends answers: the end of an answer would look like padding. An encoder keeps
        its padding token, since its positions may start after that id.
        """
        config, pad = self.models.trained(role).saved_config, self.prepared.pad_token_id
        if role not in SCALAR_ROLES or family_of(config.get("model_type")).encoder:
            return config
        return config | {"pad_token_id": None if pad in self.prepared.stop_token_ids else pad}

    # --- the trainer

    def trainer(
        self, parts: RunComponents, hooks: Hooks, checkpointer: RunCheckpointer | None = None
    ) -> Trainer:
        """Return the trainer: learning rate, seeds, when to evaluate and save, which metric is best."""
        t, plan, world = self.config.training, self.plan, self.world
        strategy, state, total = parts.runner.strategy, parts.state, parts.epochs.total_steps
        generates = algorithm_spec(plan.algorithm).generation(t) is not None
        here = plan.mesh.coordinates(world.rank)
        rewards = [reward.name for reward in (t.rollout or RolloutOptions()).rewards]
        answers = t.eval_metrics if t.eval_generate else ()
        # ranks of a cp group have other tokens, and so other dropout masks
        mesh_place = Role.POLICY.value, strategy.data_parallel_rank, here.cp

        def seeds(step: int, micro_step: int) -> int:
            return seed_for(t.seed, step, micro_step, *mesh_place)

        rule, windows = SpikeRule.of(t), parts.windows
        names = RowNames(self.prepared.train, [data_set.path for data_set in self.config.data.train])
        from_rows = names.of if isinstance(windows, WindowSource) else _no_rows
        tracer = NonFiniteTracer(world, parts.runner, parts.handles, parts.algorithm, seeds, from_rows)
        if not t.callbacks:  # none is left of those that ended the run
            state.stopped_by_callback = False
        return Trainer(
            parts.runner,
            parts.algorithm,
            parts.handles,
            parts.windows,
            parts.epochs,
            state=state,
            hooks=hooks,
            cadence=Cadence.of(t, total),
            lr=learning_rate_schedule(
                t.lr_scheduler_type, t.learning_rate, t.warmup_steps, total, t.lr_scheduler_kwargs
            ),
            max_grad_norm=t.max_grad_norm,
            seed_for=seeds,
            throughput=Throughput.of(plan, parts.algorithm, world.device),
            device=world.device,
            agree=LateFlag(world),
            best=best_rule(t, evaluation_metrics(plan.algorithm, rewards, answers)),
            inspect=checks_of_first_windows(world, plan.mesh, parts) if world.world_size > 1 else None,
            profile=None
            if t.profile is None
            else profile_of(
                t.profile, plan, world, self.run, parts.handles, hooks.note, range(state.step + 1, total + 1)
            ),
            evaluate=self.evaluation(parts, hooks.note),
            saves=checkpointer,
            any_rank=world.any,
            max_sampling_gap=largest_gap(t, plan.precision.compute) if generates else None,
            rate_ratios=rates_of_parts(plan),
            spike_rule=rule,
            rows_of=lambda step: (
                names.of(windows.documents(step)) if isinstance(windows, WindowSource) else ()
            ),
            go_back=partial(self.go_back, parts),
            trace=tracer.trace,
            bands=BandClock(lambda: world.waits.seconds),
            between=ROLLOUT if generates else STEP,
            # a callback may stop the run for this step's loss, and a spike is known before the next one; a
            # rollout lasts; a profile is of this step
            late=not (generates or t.callbacks or t.profile or rule.skips or rule.rolls_back),
        )


def _no_rows(documents: Sequence[int]) -> Sequence[str]:
    """Return the rows of documents that the model has written: none."""
    return ()
