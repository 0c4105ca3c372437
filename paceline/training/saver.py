"""The ``save(step)`` function of a run: write a durable checkpoint, then report it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paceline.checkpoint.store import Checkpointer
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json, JsonObject
from paceline.data.prepare import Prepared
from paceline.plan.plan import Plan
from paceline.runlog import events
from paceline.training.parts import Parts
from paceline.training.saving import (
    adapter_of,
    exported_shards,
    hugging_face_files,
    own_generation,
    run_state,
)

Published = Callable[[events.CheckpointSaved, Sequence[Diagnostic]], None]


def checkpoint_saver(
    parts: Parts,
    plan: Plan,
    prepared: Prepared,
    checkpointer: Checkpointer,
    hf_config: Mapping[str, Json],
    published: Published,
    *,
    keep_best: bool,
    carried: Callable[[], JsonObject] = dict,
) -> Callable[[int], None]:
    """Return the trainer's save function.

    ``published`` is called on this rank after each durable checkpoint. ``hf_config`` belongs to the exported
    model; ``carried`` gives what of its folder an export copies, and is called on rank 0.
    """
    algorithm, handles = parts.algorithm, parts.handles
    root = handles[algorithm.trains[0]].root
    adapter = adapter_of(root)
    generation = {
        **own_generation(root.hf),
        "eos_token_id": list(prepared.stop_token_ids),
        "pad_token_id": prepared.pad_token_id,
    }
    main = parts.runner.strategy.world.is_main
    files = hugging_face_files(hf_config, prepared.tokenizer_path, generation, adapter) if main else {}
    beside = carried() if main else {}

    def save(step: int) -> None:
        if keep_best:
            checkpointer.protect(parts.state.best_step)
        state = run_state(
            parts.state,
            algorithm,
            plan,
            prepared.fingerprint,
            {role.value: adapter_of(handles[role].root) for role in algorithm.trains},
            train_fingerprint=prepared.train_fingerprint,
            data_definition=prepared.definition,
            windows=parts.windows.state(),
            carried=beside,
        )
        shards = exported_shards(parts.runner.strategy, handles, algorithm, parts.windows.shards(step))
        path = checkpointer.save(step, shards, state, files)
        cost = checkpointer.last
        assert cost is not None
        published(
            events.CheckpointSaved(step, str(path), cost.seconds, cost.num_bytes), checkpointer.take_notes()
        )

    return save
