"""Every code that a running job can raise: found by ``plan`` before the start as well, or why it cannot be.

``raised.py`` says which codes the rooms below the plan raise. A code is found before where a rule or the plan
raises it too, where a fault in ``tests/unit/faults`` makes it, or where the plan refuses the same under
another code (``EARLIER_AS``). Each other one stands in one group of ``LATE`` by its reason, or in
``TO_BE_MOVED``.
"""

from __future__ import annotations

import ast
from functools import cache

from raised import CODE, raised
from sources import ROOMS, ROOT, sources

BEFORE = ("config", "plan", "rules", "launch", "schedulers", "cli")
BELOW = ("core", "runlog", *ROOMS[ROOMS.index("launch") + 1 : ROOMS.index("doctor")])
# Files of verbs beside training: what they raise is said as the verb begins.
OTHER_VERBS = (
    "checkpoint/export/hf_export.py",
    "checkpoint/export/peft_adapter.py",
    "checkpoint/export/untrained_tensors.py",
    "checkpoint/export/gguf/writer.py",
    "checkpoint/export/gguf/tokenizer.py",
    "checkpoint/export/architecture.py",
    "checkpoint/export/hf_folder.py",
    "checkpoint/export/reload_check.py",
    "checkpoint/export/main.py",
    "checkpoint/export/push_to_hub.py",
    "checkpoint/commands/average.py",
    "checkpoint/commands/verify.py",
    "checkpoint/commands/prune.py",
    "checkpoint/main.py",
    "checkpoint/convert/convert.py",
    "checkpoint/convert/dcp_export.py",
    "checkpoint/convert/peft_folder.py",
    "checkpoint/load/start_folder.py",
    "checkpoint/convert/pickle_reader/client.py",
    "checkpoint/convert/tensor_names.py",
    "checkpoint/convert/pickle_reader/torch_tensors.py",
    "data/prepare/main.py",
    "data/preview.py",
    "evaluation/job_checks.py",
    "evaluation/chat.py",
    "evaluation/file_rows.py",
    "evaluation/picture_chat.py",
    "evaluation/processes/sharded_model.py",
    "evaluation/answers_file.py",
    "evaluation/harness.py",
    "evaluation/scores/judge.py",
    "evaluation/scores/judge.py",
    "evaluation/scores/model_scores.py",
    "evaluation/scores/metrics.py",
    "evaluation/model_folders.py",
    "evaluation/open_run.py",
    "evaluation/file_rows.py",
    "evaluation/prompts.py",
    "evaluation/processes/ranks.py",
    "evaluation/scores/metrics.py",
    "evaluation/serve.py",
    "evaluation/server/desk.py",
    "generation/answer.py",
    "generation/settings.py",
    "training/exact_match.py",
)

# Raised in a worker as a second lock → the code under which the plan refuses the same.
EARLIER_AS = {
    "algorithm.unknown": "config.value",
    # a text without a colon is no class of one's own: strategy.unknown, reward.unknown
    "core.target": "core.target_module",
    "model.not_found": "plan.model_missing",
    "models.adapter_weights": "model.damaged_weights",
    "models.cp_heads": "par.cp_heads",
    "models.no_model": "model.missing",
    "models.no_router": "plan.no_router",
    "models.router_logits": "plan.balance_loss",
    "models.too_few_layers": "par.pp_layers",
    "models.tp_heads": "par.tp_heads",
    "models.tp_width": "par.tp_width",
    "runtime.backend": "back.nccl_cpu",
    "runtime.port_in_use": "launch.port_in_use",
    "strategy.data_parallel_world": "back.one_process",
    "strategy.deepspeed_float64": "strategy.float64",
    "strategy.deepspeed_missing": "plan.deepspeed_missing",
    "strategy.deepspeed_optimizer": "strategy.adafactor",
    "strategy.fsdp_world": "back.fsdp_single",
    "strategy.optimizer_args": "train.optim_args",
    "strategy.optimizer_sharded": "strategy.adafactor",
    "strategy.optimizer_unsupported": "train.optimizer",
    "strategy.pipeline_cp": "par.pp_cp",
    "strategy.pipeline_generation": "strategy.rollouts",
    "strategy.pipeline_schedule": "config.value",
    "strategy.single_world": "back.one_process",
    "training.lr_scheduler_kwargs": "train.schedule_options",
    "training.lr_scheduler_type": "train.schedule",
    "training.metric_for_best_model": "train.best_metric",
}

LATE = {
    "numbers of a running job": (
        """
        evaluation.metric_failed
        profile.beyond profile.failed profile.step
        rewards.failed rewards.tests rollout.no_spread training.diverged training.no_gradient
        training.no_labels training.nonfinite training.overflow training.spike training.spikes_stay
        training.straggler
    """
    ),
    "other ranks and the network: who comes, who goes, what they hold": (
        """
        runtime.rank_died runtime.no_line runtime.collective_stuck runtime.rank_late
        rollout.sampling_gap rollout.server_back rollout.server_left_out rollout.servers_gone
        rollout.server_version rollout.weights_again rollout.weights_way rollout.weights_wrong
        runtime.device_shared runtime.first_reduce runtime.link_slow runtime.ranks_differ
        runtime.ranks_unequal
        runtime.group runtime.rank_back runtime.rank_quiet runtime.rank_silent runtime.rank_slow
        runtime.ranks_missing runtime.rendezvous
        runtime.store_forged runtime.store_lost runtime.store_open runtime.store_secret runtime.store_silent
        training.rows_differ training.weights_differ world.mismatch world.peer_lost
        tracker.dropped tracker.failed tracker.slow tracker.unsent
        callback.failed callback.slow callback.stops
        checkpoint.apart checkpoint.holder_damaged checkpoint.not_fetched checkpoint.not_shared data.hub
    """
    ),
    "a launcher's variables in each process, which no process before them has": (
        """
        launch.other_processes launch.restarts runtime.env_local_rank runtime.env_missing runtime.env_number
        runtime.env_port runtime.env_rank
        runtime.docstrings runtime.env_two_launchers runtime.env_uneven
    """
    ),
    "object storage, of which a plan says nothing: `paceline train` looks there itself as it starts": (
        """
        objects.damaged objects.denied objects.fetched objects.holds_run objects.housekeeping objects.in_use
        objects.no_conditional_create objects.not_in_time objects.other_writer objects.skipped
        objects.unavailable objects.uploaded
    """
    ),
    "memory, disk and folders as they are while the job runs": (
        """
        checkpoint.disk_full checkpoint.housekeeping checkpoint.io checkpoint.no_snapshot
        checkpoint.permission checkpoint.read_only checkpoint.save_failed
        checkpoint.unreadable data.cache_damaged data.cache_rebuilt data.image_renewed data.worker_died
        rollout.server_weights
        data.image_changed
        run.checkpoint_gone run.folder_gone run.result_lost runlog.events_lost runlog.lost
        training.nothing_left training.out_of_memory
        training.plan_file training.plan_ranks training.system_refused
    """
    ),
    "every byte of a checkpoint: its hashes and tensors are read once, by the ranks that load it": (
        """
        checkpoint.missing_tensor checkpoint.no_tensor checkpoint.shape checkpoint.tensor_incomplete
    """
    ),
    "the weights: a look reads names, sizes and headers of files, not tensors": (
        """
        models.lost_weights models.missing_weights models.untied models.teacher_head resume.base_model
    """
    ),
    "all rows, rendered and tokenised: a look reads the first ones": (
        """
        data.cannot_split data.document_too_long data.eval_overlap data.max_positions
        data.no_labels data.no_usable_rows data.one_label data.row_too_large embedding.no_score
        data.token_range rewards.code_tests rewards.no_number training.eval_generate
        training.no_prompts
        data.answer_cut_off data.bad_tool_call data.bad_tools data.documents data.turn_left_out
        data.bad_csv data.bad_json data.bad_label data.bad_margin data.bad_messages
        data.images data.missing_column data.no_answer
        data.not_an_object data.not_finite data.not_text data.prompt_too_long data.reasoning
        data.template_not_incremental
        data.template_refused data.too_long data.tool_calls data.tools data.turn_weight data.unknown_role
        data.unknown_field
        data.image_bomb data.image_count data.image_cut data.image_damaged data.image_kind data.image_mark
        data.image_missing data.image_outside data.image_shape data.image_url
    """
    ),
    "notes about what was read or chosen, which refuse nothing": (
        """
        data.answers_in_a_row data.converted_away data.fields_unread data.files_left_out data.format
        data.max_rows data.special_in_answer
        data.empty_classes data.mixture data.not_written data.plain_template data.unopened_answer
        resume.batch_resplit resume.requantised
        resume.config_changed resume.other_evaluation resume.skipped_incomplete resume.fresh_start
        trial.not_here
    """
    ),
    "this machine's compiler, driver and packages as a worker uses them, which may be another host's": (
        """
        runtime.device strategy.deepspeed_accelerator strategy.deepspeed_async_io strategy.deepspeed_broken
        strategy.deepspeed_refused
    """
    ),
    "a guard: only a defect of Paceline or of a library brings it up": (
        """
        checkpoint.file_name checkpoint.state_not_json models.not_filled models.position_bias
        models.rope_by_length models.tp_vocabulary runtime.json_limit
        strategy.deepspeed_layout strategy.deepspeed_packed strategy.deepspeed_trap strategy.empty_window
        training.eval_rows training.exception
    """
    ),
}

# Built by a function that a rule asks as well: code → the function.
ASKED = {"sec.trust_remote_code": "unpinned"}

# Could be known before the start, and is not yet: code → what it takes.
TO_BE_MOVED: dict[str, str] = {
    "data.image_family data.image_package data.image_token": "a look at the processor with vision on",
}


@cache
def below() -> dict[str, set[str]]:
    """Code → its places below the plan, of those that no room before it raises too."""
    rooms = {code: {place.split("/")[1] for place in places} for code, places in raised().items()}
    return {
        code: places
        for code, places in raised().items()
        if rooms[code] & {*BELOW} and not rooms[code] & {*BEFORE}
    }


@cache
def raised_before() -> frozenset[str]:
    return frozenset(c for c, places in raised().items() if {p.split("/")[1] for p in places} & {*BEFORE})


@cache
def faults() -> frozenset[str]:
    """The codes that tests of faults wait for, each found by ``plan`` there: what stands in them as a
    text.
    """
    texts = set()
    for file in sorted((ROOT / "tests/unit/faults").glob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and CODE.fullmatch(node.value):
                texts.add(node.value)
    return frozenset(texts)


def of_another_verb(places: set[str]) -> bool:
    return all(place.partition("/")[2].rpartition(":")[0] in OTHER_VERBS for place in places)


def placed() -> list[str]:
    named = [*LATE.values(), *TO_BE_MOVED]
    return [*EARLIER_AS, *ASKED, *(code for group in named for code in group.split())]


def test_every_code_of_a_worker_is_found_before_or_has_its_reason() -> None:
    waits = {c: sorted(p) for c, p in below().items() if c not in faults() and not of_another_verb(p)}
    missing = {code: places for code, places in waits.items() if code not in placed()}
    assert missing == {}, (
        "find it by a rule, the plan or a look, with a fault in tests/unit/faults; or say here why it comes"
        " late"
    )
    assert sorted(set(placed()) - waits.keys()) == [], (
        "found before, of another verb, or raised by nobody: take it out"
    )


def test_each_stands_once() -> None:
    assert sorted(code for code in {*placed()} if placed().count(code) > 1) == []


def test_what_is_said_earlier_is_said_before_the_start() -> None:
    assert sorted({*EARLIER_AS.values()} - raised_before() - faults()) == []


def test_what_rules_ask_is_imported_by_one() -> None:
    names = {
        alias.name
        for source in sources()
        if source.room == "rules"
        for node in source.nodes()
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert sorted({*ASKED.values()} - names) == []


def test_files_of_other_verbs_raise_something_and_no_worker_is_among_them() -> None:
    raising = {p.partition("/")[2].rpartition(":")[0] for places in raised().values() for p in places}
    assert sorted({*OTHER_VERBS} - raising) == []
    assert not {"training/worker.py", "training/run/build.py"} & {*OTHER_VERBS}


def test_a_new_code_would_be_asked_for() -> None:
    """The scan sees workers' codes at all, and tells them from the plan's."""
    assert len(below()) > 150 and "training.diverged" in below() and "par.product" not in below()
    assert "data.not_utf8" in faults() and "data.not_utf8" in below() and "data.not_utf8" not in placed()


def test_reasons_are_sentences_and_the_debt_is_short() -> None:
    assert all(len(why.split()) > 3 for why in (*LATE, *TO_BE_MOVED.values()))
    assert len([code for group in TO_BE_MOVED for code in group.split()]) < 35
