"""Build a trainer from a plan: every component gets explicit values, and none below sees Config."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from paceline.algorithms.algorithm import Algorithm, algorithm_class
from paceline.algorithms.moe_balance_loss import Balanced
from paceline.checkpoint.async_checkpointer import SavesBeside
from paceline.checkpoint.checkpointer import Checkpointer
from paceline.checkpoint.export.untrained_tensors import STATE_KEY
from paceline.checkpoint.load.reader import CheckpointReader
from paceline.checkpoint.node_local.shared_disks import Disks
from paceline.checkpoint.object_store.background_upload import Uploads, open_uploads
from paceline.checkpoint.save.retention import RetentionRule, being_read
from paceline.config.registries.evaluation_metrics import evaluation_metrics
from paceline.config.schema import Config
from paceline.config.sections.rollout import RolloutOptions
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError, ConfigError, DataError
from paceline.core.json_types import JsonObject, as_object
from paceline.core.rundir import RunDir
from paceline.data.packed_source import PackedSource
from paceline.data.preflight.check_sets import check_feeds
from paceline.data.prepare.prepare import Prepared, check_token_range
from paceline.data.rows.kinds.base import row_kind
from paceline.models.heads.sequence_classification import SCALAR_ROLES, Classes
from paceline.plan.algorithms.rollout import answers_at_evaluation
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.features.experts import router_options
from paceline.plan.model.files.folder_check import classes_of_head
from paceline.plan.model.read_config import text_part
from paceline.plan.model.shape import config_coefficient
from paceline.plan.plan import Plan
from paceline.plan.timeouts import STEP
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Role
from paceline.protocols.rollout import OnPolicyObjective
from paceline.protocols.window import Window
from paceline.runlog.events import Notice
from paceline.runtime.device.device import memory_bytes, reserved_bytes
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
from paceline.training.checkpointing.saver import Published, RunContents, RunSaves
from paceline.training.evaluation import answers_measured, evaluate
from paceline.training.loop.intervals import Cadence, every
from paceline.training.loop.lr_schedules import learning_rate_schedule
from paceline.training.loop.throughput import PeakFlops, Throughput, computed_parameters
from paceline.training.loop.train_state import TrainState, best_rule
from paceline.training.loop.trainer import (
    ROLLOUT,
    Evaluation,
    Observer,
    Parts,
    Saves,
    Trainer,
    Windows,
    notify,
)
from paceline.training.loop.window_source import (
    BatchLayout,
    CountedRows,
    Epochs,
    Loading,
    WindowSource,
    count_epochs,
)
from paceline.training.profiling.recorder import Around, profile_of
from paceline.training.rank_checks import CHECKED_STEPS, check_same_rows, check_same_weights
from paceline.training.rollout.build import RolloutSetup, rollout_options
from paceline.training.rollout.on_policy_distillation import own_answers
from paceline.training.run.class_labels import read_classes
from paceline.training.run.model_factories import Models
from paceline.training.run.reference_logprobs import ask_reference


@dataclass
class Session:
    """The parts of one run on one rank."""

    world: World
    plan: Plan
    config: Config
    prepared: Prepared
    run: RunDir
    reader: CheckpointReader | None = None
    # returns the reader of the checkpoint before a damaged one, or raises its error
    former: Callable[[CheckpointError], CheckpointReader] | None = None
    # extra columns per split
    columns: Mapping[str, Mapping[str, NDArray[np.generic]]] = field(default_factory=dict)
    classes: Classes | None = None  # set for classification
    notes: list[str] = field(default_factory=list)  # messages from before the first step, for the log
    disks: Disks | None = None  # which ranks see the same run directory; None: all do

    @property
    def models(self) -> Models:
        """The factories of the roles' models."""
        return Models(self.plan, self.config, self.prepared, self.world.device, self.classes, self._restored)

    def _restored(self, role: Role) -> Collection[str]:
        """Return the parameters of a trained role that the checkpoint to resume from brings."""
        spec = algorithm_spec(self.plan.algorithm)
        initial = (  # its log-probabilities are computed before the checkpoint is imported
            self.plan.reference == "cached" and spec.model_named(self.config.training, "reference") is None
        )
        return () if self.reader is None or initial else self.reader.parameters(role.value)

    @property
    def loading(self) -> Loading:
        """How batches are prefetched."""
        return Loading.of(self.config.training, self.world.device)

    def build(
        self,
        observers: Iterable[Observer],
        stop_requested: Callable[[], bool],
        published: Published,
        should_stop: Callable[[], bool] = lambda: False,
        doing: Callable[[int, str], None] = lambda step, phase: None,
    ) -> Trainer:
        """Return this rank's trainer; ``published`` is called after each durable checkpoint. Collective."""
        parts = self.parts()
        # even with save_strategy: no, since a stop saves
        saves = self.saves(parts, published, partial(notify, observers))
        return self.trainer(parts, observers, stop_requested, saves, should_stop, doing)

    def saves(
        self, parts: Parts, published: Published, note: Callable[[Diagnostic], None] = lambda diagnostic: None
    ) -> RunSaves:
        """Return the saves of the run, beside training if the plan says so, and to object storage too."""
        t, exported = self.config.training, parts.algorithm.trains[0]
        before = {} if self.reader is None else as_object(self.reader.state.get(STATE_KEY))
        rest = partial(self.models.carried, exported, before)
        files = partial(kept_files, self.config.model, self.prepared.tokenizer_path)
        contents = RunContents(
            parts, self.plan, self.prepared, self.hf_config(exported), base=files, carried=rest
        )
        ranks = StoreRanks.open(self.world) if self.plan.save_async else self.world
        checkpointer = Checkpointer(
            self.run, ranks, t.save_total_limit, every=t.save_keep_every, disks=self.disks
        )
        beside = SavesBeside(checkpointer, ranks, self.world.device) if self.plan.save_async else None
        return RunSaves(
            contents,
            checkpointer,
            published,
            keep_best=t.load_best_model_at_end,
            beside=beside,
            uploads=self.uploads(),
            note=note,
        )

    def uploads(self) -> Uploads | None:
        """Return the uploads of checkpoints, if the run has a URL for them."""
        t = self.config.training
        if t.checkpoint_url is None:
            return None
        rule = RetentionRule(t.save_total_limit, t.save_keep_every)
        uploads = open_uploads(t.checkpoint_url, self.run, StoreRanks.open(self.world, "upload"), rule)
        own = self.reader is not None and self.reader.path.parent == self.run.checkpoints
        if self.reader is not None and own and (self.disks is None or self.disks.are_one):
            uploads.resumed(self.reader.path)
        return uploads

    def parts(self) -> Parts:
        """Build model, strategy, algorithm and data; restore the checkpoint to resume from. Collective."""
        # Algorithm and strategy, with what they need to know of the data
        if self.world.device.type == "cpu":
            return_freed_memory()
        self.find_classes()
        algorithm = self.algorithm()
        strategy = make_strategy(self.plan.strategy, self.world, self.plan)
        runner = make_runner(strategy)
        generation = algorithm_spec(self.plan.algorithm).generation(self.config.training)
        if (generation is not None or self.config.training.eval_generate) and not strategy.can_generate:
            raise ConfigError(
                codes.STRATEGY_PIPELINE_GENERATION(
                    "training.distributed_strategy", self.plan.strategy, strategy=self.plan.strategy
                )
            )
        # Models: trained and frozen; a cached reference is computed before any weight changes
        factories = {role: self.models.trained(role) for role in algorithm.trains}
        handles = {
            role: strategy.prepare(role, build, self.plan.optimizer) for role, build in factories.items()
        }
        for role in algorithm.frozen:
            handles[role] = strategy.prepare(role, self.models.frozen(role), None)
        if self.world.device.type == "cpu":
            configure_malloc()
        if algorithm.compares is not None:
            for root in handles[Role.POLICY].roots:
                root.compare_with(handles[Role.TEACHER].root, algorithm.compares)
        if self.plan.reference == "cached":
            self.columns, note = ask_reference(self, runner, handles, factories[Role.POLICY])
            self.notes.append(f"{'reference':<9} {note}")
        # Data and position: epochs are counted before the state is restored
        source = self.source(train=True)
        self.check_data(handles[algorithm.trains[0]].root)
        layout = self.batch_layout(strategy, self.plan.batch.micro_batch, self.plan.batch.accumulation)
        rolls = (
            self.rollouts(runner, cast(OnPolicyObjective, algorithm), handles, layout)
            if algorithm_spec(self.plan.algorithm).on_policy
            else None
        )
        epochs = self.epochs(source if rolls is None else rolls.rows(source), layout)
        state = self.restore(strategy, handles, algorithm)
        # Windows from the restored step on: rollouts of the policy, or rows of the data
        if rolls is not None:
            drawn = {} if self.reader is None else as_object(self.reader.state.get("windows"))
            rollouts = rolls.windows(source, epochs, state.step, self.reader, drawn)
            windows: Windows = rollouts
            evaluated: Evaluation = rollouts.evaluate
        else:
            others = algorithm.window_means.rows if algorithm.window_means is not None else ""
            windows = WindowSource(source, layout, epochs, state.step, self.loading, others)
            if generation is not None:
                policy = handles[algorithm.trains[0]]
                windows = own_answers(
                    windows, source, self.plan, self.config.training, self.prepared, strategy, policy
                )
            evaluated = self.evaluated(runner, handles, algorithm)
        # Bring each engine into the state it has after a first step (contract 9)
        filler = windows.filler()
        for role in algorithm.trains:
            strategy.warm_up(handles[role], filler, algorithm)
        return Parts(runner, algorithm, handles, windows, epochs, state, evaluated)

    def find_classes(self) -> None:
        """Find the classes that the rows name, where the algorithm's rows have any."""
        spec = algorithm_spec(self.plan.algorithm)
        if row_kind(spec.rows).classes:
            head = classes_of_head(self.config.model)
            found = read_classes(self.prepared, spec, self.config.training, head)
            self.classes, self.columns = found.classes, found.columns
            self.notes.append(f"{'classes':<9} {found.words}")

    def rollouts(
        self, runner: Runner, algorithm: OnPolicyObjective, handles: Handles, layout: BatchLayout
    ) -> RolloutSetup:
        """Return the builder of an on-policy algorithm's windows."""
        folder, training = self.run.rollout_weights, self.config.training
        return RolloutSetup(
            self.world, self.plan, training, self.prepared, folder, runner, algorithm, handles, layout
        )

    def algorithm(self) -> Algorithm:
        """Return the algorithm, with the balance loss of a mixture's experts if there is one."""
        plain = algorithm_class(self.plan.algorithm)(**self.algorithm_options())
        requested = config_coefficient(text_part(self.hf_config(plain.trains[0])))
        loss = router_options(self.config.training, requested).loss
        return plain if loss is None else Balanced(plain, loss)

    def algorithm_options(self) -> JsonObject:
        """Return the algorithm's own section of ``training``, with what the plan decides about it."""
        spec = algorithm_spec(self.plan.algorithm)
        if spec.on_policy:
            return rollout_options(self.config.training, self.plan)
        options = spec.arguments(spec.options_of(self.config.training))
        return {**options, "reference": self.plan.reference} if self.plan.reference else options

    def check_data(self, root: RootModule) -> None:
        """Check that the embedding has a row for every token. Raises DataError."""
        found = check_token_range(self.prepared, root.hf.get_input_embeddings().num_embeddings)
        if found:
            raise DataError(*found)

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
        )
        source.columns.update(self.columns.get("train" if train else "eval", {}))
        return source

    @staticmethod
    def batch_layout(strategy: Strategy, micro_batch: int, accumulation: int) -> BatchLayout:
        return BatchLayout(
            micro_batch, accumulation, strategy.data_parallel_rank, strategy.data_parallel_size
        )

    def epochs(self, source: CountedRows, layout: BatchLayout) -> Epochs:
        """Return the epochs of the run. Raises DataError if the data cannot fill a single step."""
        t = self.config.training
        epochs = count_epochs(
            source, layout.global_batch, t.num_train_epochs, t.max_steps, t.dataloader_drop_last
        )
        if epochs.total_steps == 0:
            raise DataError(
                codes.TRAINING_NO_STEPS(
                    "training.dataloader_drop_last", f"{source.num_rows(0)} rows; {self.plan.batch}"
                )
            )
        found = check_feeds(source.num_rows(0), layout.dp_size)
        if found:
            raise DataError(*found)
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
                    self.reader.settle()
                    break
                except CheckpointError as error:
                    if self.former is None:
                        raise
                    damage = error
            self.reader = self.former(damage)
        algorithm.load_state(as_object(self.reader.state.get("algorithm")))
        return TrainState.from_json(as_object(self.reader.state["train"]))

    def trainer(
        self,
        parts: Parts,
        observers: Iterable[Observer],
        stop_requested: Callable[[], bool],
        saves: Saves | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        doing: Callable[[int, str], None] = lambda step, phase: None,
    ) -> Trainer:
        """Return the trainer: learning rate, seeds, when to evaluate and save, which metric is best."""
        t, strategy, algorithm = self.config.training, parts.runner.strategy, parts.algorithm
        generates = algorithm_spec(self.plan.algorithm).generation(t) is not None
        forwards = 0 if algorithm.window_means is None else len(algorithm.window_means.roles)
        total = parts.epochs.total_steps
        shape = self.plan.shape
        peak = PeakFlops.of(self.world.device, self.plan.precision.compute)
        piece = self.plan.mesh.coordinates(self.world.rank).cp  # other tokens, other dropout masks
        if not t.callbacks:  # none is left of those that ended the run
            parts.state.stopped_by_callback = False
        return Trainer(
            runner=parts.runner,
            algorithm=parts.algorithm,
            handles=parts.handles,
            windows=parts.windows,
            epochs=parts.epochs,
            cadence=self.cadence(total),
            lr=learning_rate_schedule(
                t.lr_scheduler_type, t.learning_rate, t.warmup_steps, total, t.lr_scheduler_kwargs
            ),
            max_grad_norm=t.max_grad_norm,
            seed_for=lambda step, micro: seed_for(
                t.seed, step, micro, Role.POLICY.value, strategy.data_parallel_rank, piece
            ),
            throughput=Throughput(
                computed_parameters(
                    shape,
                    self.plan.adapter,
                    self.plan.reference,
                    trained=len(algorithm.trains),
                    forwards=forwards,
                ),
                self.plan.world_size,
                peak if shape else None,
            ),
            memory_bytes=lambda: memory_bytes(self.world.device),
            reserved_bytes=lambda: reserved_bytes(self.world.device),
            agree=LateFlag(self.world),
            stop_requested=stop_requested,
            observers=observers,
            best=best_rule(t, self.evaluation_metrics()),
            state=parts.state,
            inspect=self.inspector(parts) if self.world.world_size > 1 else None,
            profile=self.profile(parts, observers, total),
            evaluate=self.evaluation(parts, observers),
            saves=saves,
            should_stop=should_stop,
            any_rank=self.world.any,
            doing=doing,
            between=ROLLOUT if generates else STEP,
            # a callback may stop the run for this step's loss; a rollout lasts; a profile is of this step
            late=not (generates or t.callbacks or t.profile),
        )

    def profile(self, parts: Parts, observers: Iterable[Observer], total: int) -> Around | None:
        """Return what records the steps that the config names on this rank; None if there are none."""

        def report(finding: Diagnostic) -> None:
            for observer in observers:
                observer(Notice(finding))

        requested = self.config.training.profile
        if requested is None:
            return None
        steps = range(parts.state.step + 1, total + 1)
        return profile_of(requested, self.plan, self.world, self.run, parts.handles, report, steps)

    def evaluation_metrics(self) -> tuple[str, ...]:
        """Return the names of the metrics that an evaluation of this run yields."""
        t = self.config.training
        rewards = (t.rollout or RolloutOptions()).rewards
        answers = t.eval_metrics if t.eval_generate else ()
        return evaluation_metrics(self.plan.algorithm, [reward.name for reward in rewards], answers)

    def evaluation(
        self, parts: Parts, observers: Iterable[Observer] = ()
    ) -> Callable[[], dict[str, float]] | None:
        """Return the evaluation function, or None if the run does not evaluate."""
        t = self.config.training
        if self.prepared.eval is None or (t.eval_strategy == "no" and not t.eval_on_start):
            return None
        rows = partial(parts.evaluate, self.source(train=False))
        options = answers_at_evaluation(t, self.config.generation)
        if options is None:
            return rows
        strategy, policy = parts.runner.strategy, parts.handles[parts.algorithm.trains[0]]
        report = partial(notify, observers)
        answers, words = answers_measured(self.plan, t, options, self.prepared, strategy, policy, report)
        self.notes.append(f"{'answers':<9} {words}")
        return lambda: {**rows(), **answers()}

    def evaluated(self, runner: Runner, handles: Handles, algorithm: Algorithm) -> Evaluation:
        """Return the evaluation of an algorithm that trains on rows."""
        layout = self.batch_layout(runner.strategy, self.config.training.per_device_eval_batch_size, 1)
        return lambda source: evaluate(runner, handles, algorithm, source, layout, self.loading)

    def inspector(self, parts: Parts) -> Callable[[Window], None]:
        """Return a check for the first windows: equal rows in a model copy, equal weights across copies."""
        mesh, strategy, until = self.plan.mesh, parts.runner.strategy, parts.state.step + CHECKED_STEPS
        trained = {role.value: handle.root for role, handle in parts.handles.items() if handle.trained}

        def inspect(window: Window) -> None:
            if window.step < until and mesh.model_copies > 1:
                check_same_rows(self.world, strategy.data_parallel_rank, window)
            if window.step <= until:
                check_same_weights(self.world, mesh.coordinates(self.world.rank), window.step, trained)

        return inspect

    def cadence(self, total_steps: int) -> Cadence:
        t = self.config.training
        logging_steps = every(t.logging_steps, total_steps)
        return Cadence(
            total_steps=total_steps,
            logging_steps=logging_steps,
            logging_first_step=t.logging_first_step,
            eval_strategy=t.eval_strategy,
            eval_steps=every(t.eval_steps, total_steps) if t.eval_steps else logging_steps,
            save_strategy=t.save_strategy,
            save_steps=every(t.save_steps, total_steps),
            keep_best=t.load_best_model_at_end,
        )

    def hf_config(self, role: Role) -> JsonObject:
        """Return ``config.json`` of the trained model.

        Transformers' sequence classification reads the last token that is not padding, so for scalar heads a
        padding token that also ends answers is omitted: it would be mistaken for padding.
        """
        config = self.models.trained(role).saved_config
        pad = self.prepared.pad_token_id
        scores = role in SCALAR_ROLES
        return (
            config | {"pad_token_id": None if pad in self.prepared.stop_token_ids else pad}
            if scores
            else config
        )
