"""Rollouts cut into steps: the same answers on any number of ranks, whole groups, a rollout that is
stopped in its middle and goes on.
"""

from __future__ import annotations

import json
import math
from ast import literal_eval
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from paceline.algorithms.on_policy.base import LabelledTokens
from paceline.algorithms.on_policy.grpo import GRPO
from paceline.algorithms.on_policy.ppo import PPO
from paceline.algorithms.on_policy.reinforce_plus_plus import ReinforcePlusPlus
from paceline.algorithms.on_policy.rloo import RLOO
from paceline.algorithms.rewards.scoring import RewardSpec, Scorer
from paceline.config.sections.rollout import RolloutOptions
from paceline.config.sections.training import TrainingSection
from paceline.core.errors import ConfigError
from paceline.generation.engine import Completion, Request, RolloutSampling
from paceline.plan.algorithms.rollout import check_rollout, rollout_sizes
from paceline.plan.algorithms.spec import algorithm_spec
from paceline.plan.mesh import BatchSplit
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output, Role
from paceline.protocols.rollout import RolloutAnswers
from paceline.protocols.window import StepResult, Window
from paceline.training.loop.divergence_watch import findings_of
from paceline.training.loop.train_state import TrainState
from paceline.training.loop.window_source import BatchLayout, count_epochs
from paceline.training.rollout.build import sampling_exact
from paceline.training.rollout.generate import Limits, RolloutGenerator
from paceline.training.rollout.layout import AnswerRows, Prompt, PromptSampler, RolloutLayout
from paceline.training.rollout.rollout_windows import RolloutWindows
from paceline.training.rollout.scored_rollout import RolloutRewards

PROMPTS = [(3, 4), (5,), (6, 7, 8), (9,), (10, 11)]


class Table:
    def row(self, document: int) -> tuple[Any, Any]:
        return torch.tensor(PROMPTS[document]), None

    def facts(self, document: int) -> dict[str, Any]:
        return {"prompt": str(document), "answer": "even"}


class Prompts:
    """Five prompts, in another order each epoch."""

    table = Table()

    def num_rows(self, epoch: int) -> int:
        return len(PROMPTS)

    def document_ids(self, epoch: int, positions: list[int]) -> list[int]:
        return [(p * 2 + epoch) % 5 if p < 5 else -1 for p in positions]


class Speaker:
    """Says a few tokens that follow from the request alone; ``asked`` counts."""

    asked = 0

    def generate(self, requests: list[Request], sampling: RolloutSampling) -> list[Completion]:
        Speaker.asked += sum(bool(r.max_tokens) for r in requests)
        found = []
        for r in requests:
            length = min(r.max_tokens, 1 + (r.stream % 4))
            tokens = tuple(20 + (r.stream >> i) % 10 for i in range(length))
            found.append(Completion(tokens, torch.full((length,), -float(r.stream % 7)), r.stream % 2 == 0))
        return found


class Runner:
    @property
    def strategy(self) -> Any:
        return self

    def shard_batch(self, batch: Batch) -> Batch:
        return batch

    def forward_no_grad(
        self, handles: Any, role: Role, placed: Batch, ask: frozenset[Output]
    ) -> dict[str, torch.Tensor]:
        if role is Role.VALUE:
            return self.values(placed)
        return {
            Output.LOGPROBS.value: (
                placed.input_ids[placed.labels != -100].double() / 10 - 7 * (role is Role.REFERENCE)
            )
        }

    @contextmanager
    def generating(self, handle: Any) -> Any:
        yield None

    def values(self, placed: Batch) -> dict[str, torch.Tensor]:
        return {Output.VALUES.value: placed.position_ids[placed.labels != -100].double() / 9}


class Ranks:
    """The other ranks' numbers come from ``shared``: filled by running every rank once, then again."""

    def __init__(self, rank: int, shared: dict[int, dict[int, list[float]]]) -> None:
        self.rank, self.shared, self.calls = rank, shared, 0

    def all_reduce_sum_float(self, values: list[float]) -> list[float]:
        self.calls += 1
        self.shared.setdefault(self.calls, {})[self.rank] = values
        return [sum(column) for column in zip(*self.shared[self.calls].values(), strict=True)]


def decode(rows: list[list[int]], **_: Any) -> list[str]:
    """As Transformers' tokenizers: of no rows one empty text."""
    return ["even" if sum(r) % 2 == 0 else "odd" for r in rows] or [""]


SPECIAL = SimpleNamespace(content="<odd>", special=True)
TOKENIZER = SimpleNamespace(
    batch_decode=decode, decode=lambda row, **_: decode([row])[0], added_tokens_decoder={1: SPECIAL}
)


def windows(
    world: Any,
    cut: BatchLayout,
    *,
    updates: int = 1,
    passes: int = 1,
    group: int = 2,
    start: int = 0,
    reader: Any = None,
    ppo: bool = False,
    filtered: bool = False,
    redraws: int = 0,
    drawn: Any = None,
) -> RolloutWindows:
    algorithm: Any = GRPO(beta=0.1, num_iterations=passes, updates_per_pass=updates)
    if ppo:
        algorithm = PPO(
            num_ppo_epochs=passes, updates_per_pass=updates, whiten_rewards=True, missing_eos_penalty=0.3
        )
    rollout = RolloutLayout(cut, group, updates, passes)
    epochs = count_epochs(AnswerRows(Prompts(), rollout, False), cut.global_batch, 2.0, -1, False)
    answerer = RolloutGenerator(
        Runner(), None, TOKENIZER, Scorer([RewardSpec("exact_match")]), lambda root: Speaker()
    )  # type: ignore[arg-type, return-value]
    return RolloutWindows(
        world=world,
        runner=Runner(),
        algorithm=algorithm,
        handles={Role.POLICY: SimpleNamespace(averaged=nullcontext)},
        prompts=Prompts(),
        generator=answerer,
        sampling=RolloutSampling(),
        limits=Limits(4, 16),
        layout=rollout,
        draws=PromptSampler(Prompts(), rollout.groups, again=redraws > 0, saved=drawn or {}),
        max_redraws=redraws,  # type: ignore[arg-type]
        epochs=epochs,
        start=start,
        seed=1,
        pad_id=0,
        dtype=torch.float64,
        reader=reader,
        filter_groups=filtered,
    )


def rows_of(window: Window) -> list[tuple[Any, ...]]:
    """Every real answer of a window: tokens and all that is known of it."""
    found = []
    for batch in window.micro_batches:
        ends = batch.cu_seqlens.tolist()
        for i, document in enumerate(batch.document_ids.tolist()):
            span = slice(ends[i], ends[i + 1])
            if document >= 0:
                known = {name: values[0, span].tolist() for name, values in sorted(batch.tokens.items())}
                found.append(
                    (document, batch.input_ids[0, span].tolist(), batch.labels[0, span].tolist(), str(known))
                )
    return found


def all_ranks(size: int, micro: int, accumulation: int, **options: Any) -> list[list[tuple[Any, ...]]]:
    """The rows of every step, all ranks together, micro-batches in their global order."""
    shared: dict[int, dict[int, list[float]]] = {}
    # the second time everybody's numbers are known, then what follows from them; what is drawn again follows
    # from all before
    for _ in range(40 if options.get("redraws") else 4):
        made = [
            list(windows(Ranks(rank, shared), BatchLayout(micro, accumulation, rank, size), **options))
            for rank in range(size)
        ]
    steps = []
    for step in range(len(made[0])):
        assert len({w[step].sample_digest for w in made}) == 1
        steps.append(sorted(row for w in made for row in rows_of(w[step])))
    return steps


def near(step: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Rows with what is known of their tokens to nine places: whitening over other pieces adds up in
    another order.
    """
    return [
        (*row[:3], {n: [round(v, 9) for v in vs] for n, vs in literal_eval(row[3]).items()}) for row in step
    ]


@pytest.mark.parametrize(
    "options",
    [{}, {"updates": 2, "passes": 2}, {"group": 4}, {"ppo": True, "updates": 2, "passes": 2, "group": 1}],
)
def test_the_same_answers_on_any_number_of_ranks(options: dict[str, Any]) -> None:
    alone = all_ranks(1, 4, 1, **options)
    for cut in ((2, 2, 1), (2, 1, 2)):
        assert [near(step) for step in all_ranks(*cut, **options)] == [near(step) for step in alone]
    group = options.get("group", 2)
    every = [row for step in alone[: len(alone) // 2] for row in step]
    # an epoch: every prompt as often as it is to be answered
    assert len(every) == 5 * group * options.get("passes", 1)
    one = alone[: len(alone) // 2]
    # samples differ, epochs too
    assert len({str(row[1]) for row in every}) > 4 and one != alone[len(alone) // 2 :]


def test_groups_of_equal_scores_are_left_out_on_every_rank_alike() -> None:
    """What is trained on are the rows with an advantage, the same on any number of ranks; what is told is
    of all answers.
    """
    whole, some = all_ranks(1, 4, 1), all_ranks(1, 4, 1, filtered=True)
    assert some == [[row for row in step if any(credits_of(row))] for step in whole]
    assert 0 < sum(map(len, some)) < sum(map(len, whole)), "the test needs groups of both sorts"
    assert all_ranks(2, 2, 1, filtered=True) == some
    told = [
        list(windows(Ranks(0, {}), BatchLayout(4, 1, 0, 1), filtered=f))[0].report.metrics["reward"]
        for f in (False, True)
    ]  # type: ignore[union-attr]
    assert told[0] == told[1]


def test_prompts_follow_from_the_step_or_from_how_many_were_taken() -> None:
    plain = PromptSampler(Prompts(), 3, again=False, saved={"next": [7, 7], "asked": [[7, 7]]})  # type: ignore[arg-type]
    plain.begin(1, 1)
    # beyond the epoch's end is nothing
    assert plain.prompts_of_groups == [Prompt(1, 2), Prompt(1, 4), Prompt(1, -1)] and plain.state() == {}
    again = PromptSampler(Prompts(), 3, again=True, saved={})  # type: ignore[arg-type]
    again.begin(0, 0)
    again.replace([0, 2])  # the next two of the order, in the order of the groups
    assert again.prompts_of_groups == [Prompt(0, 1), Prompt(0, 2), Prompt(0, 3)]
    again.begin(0, 1)  # goes on in the next epoch's order, not at 1 · 3
    assert again.prompts_of_groups == [Prompt(1, 1), Prompt(1, 3), Prompt(1, 0)]
    other = PromptSampler(Prompts(), 3, again=True, saved=json.loads(json.dumps(again.state())))  # type: ignore[arg-type]
    assert other.prompts_of_groups == again.prompts_of_groups
    other.resume(0, 1)
    assert other.prompts_of_groups == again.prompts_of_groups
    for each in (other, again):
        each.begin(0, 2)
    assert other.prompts_of_groups == again.prompts_of_groups == [Prompt(1, 2), Prompt(1, 4), Prompt(2, 2)]
    late = PromptSampler(Prompts(), 3, again=True, saved={})  # type: ignore[arg-type]
    late.resume(0, 1)  # the option came with the resume: as it would have been without
    assert late.prompts_of_groups == [Prompt(0, 1), Prompt(0, 3), Prompt(1, 1)]


def test_prompts_that_teach_nothing_are_replaced_on_any_number_of_ranks_alike() -> None:
    """Groups of equal scores ask the next prompts of the data until none is left, or the bound is reached."""
    options: dict[str, Any] = {"filtered": True, "redraws": 9}
    alone = all_ranks(1, 4, 1, **options)
    assert all(len(step) == 4 and all(any(credits_of(row)) for row in step) for step in alone), (
        "every answer teaches"
    )
    assert alone != all_ranks(1, 4, 1)
    for document, ids, labels, known in (row for step in alone for row in step):
        start, said = len(PROMPTS[document]), sum(label for label in labels if label >= 0)
        # the answer is to this prompt, and its own score is what it is worth
        assert tuple(ids[:start]) == PROMPTS[document]
        assert (literal_eval(known)["advantage"][start - 1] > 0) == (said % 2 == 0)
    for cut in ((2, 1, 2), (4, 1, 1)):
        assert [near(step) for step in all_ranks(*cut, **options)] == [near(step) for step in alone]


def test_what_is_told_of_redrawn_prompts() -> None:
    many, one = (windows(Ranks(0, {}), BatchLayout(4, 1, 0, 1), filtered=True, redraws=n) for n in (9, 1))
    told = [w.report.metrics for w in many]  # type: ignore[union-attr]
    drawn = [m["prompts_drawn"] for m in told]
    assert max(drawn) > 2 == min(drawn) and {m["prompts_left_flat"] for m in told} == {0.0}
    # of all that were drawn
    assert [m["zero_spread"] for m in told] == pytest.approx([(n - 2) / n for n in drawn])
    # none was passed over
    assert sum(drawn) == many.draws.state()["next"][0] * 5 + many.draws.state()["next"][1]
    left = [(w.report.metrics, len(rows_of(w))) for w in one]  # type: ignore[union-attr]
    assert max(m["prompts_left_flat"] for m, _ in left) > 0, (
        "the test needs a rollout that one more draw does not fill"
    )
    assert all(rows == 2 * (2 - m["prompts_left_flat"]) and m["prompts_drawn"] <= 4 for m, rows in left)
    assert (
        "prompts_drawn"
        not in list(windows(Ranks(0, {}), BatchLayout(4, 1, 0, 1), filtered=True))[0].report.metrics
    )  # type: ignore[union-attr]


@pytest.mark.parametrize("stop", [1, 2, 3, 4])
def test_a_run_whose_prompts_are_drawn_again_goes_on_as_if_it_had_not_stopped(stop: int) -> None:
    """Stopped between rollouts and inside of one, on two ranks, and gone on with one: the same prompts,
    the same answers.
    """
    options: dict[str, Any] = {"updates": 2, "filtered": True, "redraws": 9}
    whole = list(windows(Ranks(0, {}), BatchLayout(4, 1, 0, 1), **options))
    shared: dict[int, dict[int, list[float]]] = {}
    for _ in range(40):
        ranks = [windows(Ranks(r, shared), BatchLayout(2, 1, r, 2), **options) for r in range(2)]
        for each in ranks:
            for _, _window in zip(range(stop), each, strict=False):
                pass
    shards = [shard for each in ranks for shard in each.shards(stop)]
    assert bool(shards) == (stop % 2 == 1)
    assert ranks[0].state() == ranks[1].state()
    drawn = json.loads(json.dumps(ranks[0].state()))
    again = windows(
        Ranks(0, {}), BatchLayout(4, 1, 0, 1), start=stop, reader=Memory(shards), drawn=drawn, **options
    )
    found = list(again)
    assert len(found) == len(whole) - stop > 0
    assert [near(rows_of(w)) for w in found] == [near(rows_of(w)) for w in whole[stop:]]
    assert [w.sample_digest for w in found] == [w.sample_digest for w in whole[stop:]]


class Counting(GRPO):
    """Keeps what it is told of all answers of a rollout, and how many tokens each has."""

    def finalize_rollout(self, batches: Any, answers: RolloutAnswers) -> Any:
        lengths = answers.everyones([LabelledTokens.of(batch).lengths for row in batches for batch in row])
        self.seen = [
            answers.groups.tolist(),
            answers.is_scored.tolist(),
            answers.advantages.tolist(),
            lengths.tolist(),
        ]
        return [list(row) for row in batches], {}


def test_an_algorithm_is_told_of_all_answers_of_a_rollout_on_every_rank_alike() -> None:
    """Groups lie across ranks: what follows from the answers of others is made from numbers by place."""

    def seen(ranks: int, micro: int, accumulation: int) -> list[Any]:
        shared: dict[int, dict[int, list[float]]] = {}
        for _ in range(3):
            found = []
            for rank in range(ranks):
                told = replace(
                    windows(Ranks(rank, shared), BatchLayout(micro, accumulation, rank, ranks), group=4),
                    algorithm=Counting(),
                )
                told.window(0)
                found.append(told.algorithm.seen)  # type: ignore[attr-defined]
        assert all(each == found[0] for each in found)
        return found[0]

    alone = seen(1, 4, 1)
    assert alone[0] == [0] * 4 and all(alone[1]) and len(set(alone[3])) > 1
    assert seen(2, 2, 1) == seen(2, 1, 2) == seen(4, 1, 1) == alone


def credits_of(row: tuple[Any, ...]) -> list[float]:
    """The advantages of one answer's tokens, from ``rows_of``."""
    found: list[float] = literal_eval(row[3])["advantage"]
    return found


def test_passes_go_over_the_same_answers() -> None:
    steps = all_ranks(1, 2, 1, updates=2, passes=2)
    assert steps[0] == steps[2] and steps[1] == steps[3] and steps[0] != steps[1] and steps[4] != steps[0]


def test_the_older_policy_is_not_asked_where_sampling_was_exact() -> None:
    def fields(exact: bool) -> list[tuple[torch.Tensor, torch.Tensor]]:
        source = replace(windows(Ranks(0, {}), BatchLayout(4, 1, 0, 1), passes=2), sampling_exact=exact)
        tokens = [b.tokens for w in source for b in w.micro_batches]
        assert all(set(found) == set(source.algorithm.fields()) for found in tokens)
        return [(found["old"], found["sampled"]) for found in tokens]

    assert all(torch.equal(old, sampled) for old, sampled in fields(True))
    assert not any(torch.equal(old, sampled) for old, sampled in fields(False))


@pytest.mark.parametrize(
    ("asked", "compute", "server", "exact"),
    [
        ("auto", "float32", False, True),
        ("auto", "float64", False, True),
        ("auto", "bfloat16", False, False),
        ("auto", "float16", False, False),
        ("auto", "float32", True, False),
        ("sampling", "bfloat16", True, True),
        ("recompute", "float64", False, False),
    ],
)
def test_when_sampling_counts_as_exact(asked: str, compute: str, server: bool, exact: bool) -> None:
    options = RolloutOptions.model_validate(
        {"old_logprobs": asked, **({"server": {"url": "http://localhost:8000"}} if server else {})}
    )
    assert sampling_exact(options, compute) is exact


def test_a_rollout_is_told_once_and_every_rank_has_something_to_do() -> None:
    made = list(windows(Ranks(0, {}), BatchLayout(4, 1, 0, 1), updates=2))
    told = [w.report is not None for w in made]
    assert told == [True, False] * (len(made) // 2)
    metrics = made[0].report.metrics  # type: ignore[union-attr]
    assert {
        "reward",
        "reward_std",
        "reward/exact_match",
        "time/generate",
        "time/wait",
        "time/score",
        "completion_length",
    } <= set(metrics)
    # the second rank's rows lie beyond the last prompt
    last = list(windows(Ranks(1, {}), BatchLayout(4, 1, 1, 2)))[-1]
    assert rows_of(last) == [] and len(last.micro_batches) == 1


class Memory:
    """A ShardReader over shards of several ranks."""

    def __init__(self, shards: list[Any]) -> None:
        self.tensors = {s.name: s.tensor.clone() for s in shards}
        assert len(self.tensors) == len(shards)  # a file holds a name once

    def read(self, role: str, name: str, kind: str) -> torch.Tensor:
        return self.tensors[name]


@pytest.mark.parametrize("more", [{}, {"ppo": True}])
def test_a_run_goes_on_in_the_middle_of_a_rollout(more: dict[str, Any]) -> None:
    options: dict[str, Any] = {"updates": 2, "passes": 2, **more}
    shared: dict[int, dict[int, list[float]]] = {}
    for _ in range(4):
        ranks = [windows(Ranks(r, shared), BatchLayout(2, 1, r, 2), **options) for r in range(2)]
        whole, shards = [], []
        for each in ranks:
            steps = iter(each)
            first = [next(steps) for _ in range(3)]
            assert list(each.shards(4)) == []
            shards += list(each.shards(3))
            whole.append([*first, *steps])
    before = Speaker.asked
    for r in range(2):
        again = windows(Ranks(r, {}), BatchLayout(2, 1, r, 2), start=3, reader=Memory(shards), **options)
        window = next(iter(again))
        assert rows_of(window) == rows_of(whole[r][3]) and window.report is None
        assert window.sample_digest == whole[r][3].sample_digest
        for mine, theirs in zip(window.micro_batches, whole[r][3].micro_batches, strict=True):
            assert mine.num_rows == theirs.num_rows and torch.equal(mine.cu_seqlens, theirs.cu_seqlens)
            assert torch.equal(mine.position_ids, theirs.position_ids) and torch.equal(
                mine.extras["is_scored"], theirs.extras["is_scored"]
            )
    assert Speaker.asked == before  # nothing was generated anew


def test_the_time_of_every_draw_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = count()
    monkeypatch.setattr("paceline.training.rollout.generate.time.perf_counter", lambda: float(next(ticks)))
    answerer = windows(Ranks(0, {}), BatchLayout(4, 1, 0, 1)).generator
    answerer.write([], RolloutSampling())
    once = dict(answerer.clock)
    answerer.write([], RolloutSampling())
    assert set(once) == {"sync", "generate"} and answerer.clock == {
        name: 2 * value for name, value in once.items()
    }


def test_evaluation_answers_every_prompt_once() -> None:
    shared: dict[int, dict[int, list[float]]] = {}
    for _ in range(2):
        found = [windows(Ranks(r, shared), BatchLayout(2, 1, r, 2)).evaluate(Prompts()) for r in range(2)]
    assert found[0] == found[1] and found[0]["eval_rows"] == 5
    alone = windows(Ranks(0, {}), BatchLayout(2, 1, 0, 1)).evaluate(Prompts())
    assert alone == pytest.approx(found[0])


@pytest.mark.parametrize(
    ("rollout", "code"),
    [
        ({"num_generations": 4}, None),
        ({"num_generations": 3}, "rollout.groups"),
        ({"num_generations": 4, "steps_per_generation": 3}, "rollout.steps"),
        ({"num_generations": 16, "steps_per_generation": 4}, None),
    ],
)
def test_whole_groups_and_whole_steps(rollout: dict[str, Any], code: str | None) -> None:
    training, batch = TrainingSection.model_validate({"rollout": rollout}), BatchSplit(2, 2, 2, 8)
    found = check_rollout(rollout_sizes(algorithm_spec("grpo"), training, batch))
    assert [d.code for d in found] == ([code] if code else [])
    if code:
        with pytest.raises(ConfigError, match="fix:"):
            raise ConfigError(*found)


def test_rows_that_a_reward_cannot_use_are_named_alike_on_every_rank() -> None:
    from types import SimpleNamespace

    from paceline.algorithms import codes
    from paceline.algorithms.rewards.builtin import RowCheck
    from paceline.core.errors import ConfigError
    from paceline.training.rollout.build import RolloutSetup

    class Table:
        source_row = list(range(10, 22))

        def __len__(self) -> int:
            return 12

        def facts(self, document: int) -> dict[str, Any]:
            return {"tests": "" if document % 2 else "assert f(1)"}

    def check(rows: Any) -> list[str]:
        return [name for name, columns in rows if not columns["tests"]]

    def gather(value: Any) -> list[Any]:
        return [value, [3, ["data.train row 99"]]]

    setup: Any = RolloutSetup.__new__(RolloutSetup)
    world = SimpleNamespace(rank=1, world_size=2, all_gather_json=gather)
    checks = [RowCheck(check, codes.REWARDS_CODE_TESTS)]
    setup.world, setup.scorer = world, SimpleNamespace(row_checks=checks)
    with pytest.raises(
        ConfigError, match=r"rewards.code_tests[\s\S]*data.train row 12; data.train row 14.*and 4 more"
    ):
        setup.check_rows(Table(), "data.train")
    setup.scorer = SimpleNamespace(row_checks=[])
    setup.check_rows(Table(), "data.train")


@pytest.mark.parametrize(("filtered", "told"), [(True, "max_redraws above 2"), (False, "no reward scored")])
def test_a_step_whose_answers_were_all_left_out_tells_of_the_reward(filtered: bool, told: str) -> None:
    window = windows(Ranks(0, {}), BatchLayout(4, 1, 0, 1), filtered=filtered, redraws=2 * filtered).window(0)
    assert told in window.no_labels and "max_length" not in window.no_labels
    [found] = findings_of(window, StepResult({}, {}, None, "no_labels", 0), 0.1, TrainState())
    assert found.code == "training.no_labels" and found.hint == window.no_labels


def test_rewards_see_what_the_template_opens_of_an_answer() -> None:
    """The end of the rendered prompt, of each answer's own request; fillers have none."""
    text = SimpleNamespace(
        batch_decode=lambda rows, **_: ["".join(map(chr, row)) for row in rows], added_tokens_decoder={}
    )
    table: Any = SimpleNamespace(facts=lambda owner: {"prompt": f"question {owner}"})
    scorer: Any = lambda samples, by_model: samples  # noqa: E731
    generator = RolloutGenerator(Runner(), None, text, scorer, lambda root: Speaker())  # type: ignore[arg-type, return-value]
    requests = [Request(tuple(map(ord, f"{'x' * 40} {n}<think>\n")), 0, 4) for n in range(3)]
    completions = [Completion((ord("a"),), torch.zeros(1), ended=True)] * 3
    samples, _ = generator.judged(table, [5, -1, 7], requests, completions, 1)
    assert [s.opening[-10:] for s in samples] == [" 0<think>\n", " 2<think>\n"]
    assert [s.prompt for s in samples] == ["question 5", "question 7"]


EQUAL = "all rewards are equal"
KL_ALONE = "this rollout learns from the KL to the reference alone"


@pytest.mark.parametrize(
    ("algorithm", "scores", "says"),
    [
        (ReinforcePlusPlus(), (1, 1, 1, 1), f"{EQUAL}: {KL_ALONE}, which normalising enlarges"),
        (ReinforcePlusPlus(), (1, math.nan, 1, 1), KL_ALONE),
        (ReinforcePlusPlus(), (1,), "use more answers a rollout, a reward that distinguishes"),
        (ReinforcePlusPlus(beta=0.0), (0, 0, 0, 0), "every advantage is 0"),
        (ReinforcePlusPlus(group_baseline=True), (1, 1, 2, 2), f"within each group {EQUAL}: {KL_ALONE}"),
        (ReinforcePlusPlus(), (1, 1, 2, 2), ""),
        (ReinforcePlusPlus(gamma=0.9), (1, 1, 1, 1), ""),
        (RLOO(), (1, 1, 2, 2), KL_ALONE),
        (RLOO(normalize_advantages=True), (1, 1, 2, 2), "enlarges"),
        (GRPO(beta=0.1), (1, 1, 2, 2), KL_ALONE),
        (GRPO(), (1, 1, 2, 2), "every advantage is 0, so this rollout has no gradient"),
        (GRPO(beta=0.1), (1, 1, 1, 2), ""),
        (PPO(), (1, 1, 1, 1), ""),
    ],
)  # fmt: skip
def test_rewards_that_teach_nothing_are_said(algorithm: Any, scores: tuple[float, ...], says: str) -> None:
    given, groups = torch.tensor(scores, dtype=torch.float64), torch.arange(len(scores)) // 2
    _, spread = algorithm.compute_advantages(given, groups, torch.ones(len(scores), dtype=torch.bool))
    judged = RolloutRewards(*[given] * 3, given, ~given.isnan(), given[None])
    layout = SimpleNamespace(group=2, answers=len(scores))
    run: Any = SimpleNamespace(
        algorithm=algorithm, filter_groups=False, layout=layout, sampling=RolloutSampling()
    )
    found = RolloutWindows.check_spread(run, SimpleNamespace(judged=judged, spread=spread))  # type: ignore[arg-type]
    text = "".join(one.render() for one in found)
    assert (says in text) if says else not found, text
    assert "num_generations" not in text


@pytest.mark.parametrize(
    ("temperature", "part", "says"),
    [
        (0.0, (1, 1, 1, 1), "hint:  use a temperature above 0, or a reward that distinguishes"),
        (0.7, (1, 1, 1, 1), "hint:  use a reward that distinguishes"),
        (0.7, (1, math.nan, 2, 2), "hint:  use a reward that distinguishes"),
        (0.7, (1, 1, 0, 2), "hint:  its parts differ, but their weighted sums cancel: change their weights"),
    ],
)
def test_equal_rewards_are_told_what_would_part_them(
    temperature: float, part: tuple[float, ...], says: str
) -> None:
    given, parts = torch.ones(4, dtype=torch.float64), torch.tensor([part], dtype=torch.float64)
    judged = RolloutRewards(*[given] * 4, given > 0, torch.cat([parts, 2 - parts]))
    layout = SimpleNamespace(group=2, answers=4)
    sampling = RolloutSampling(temperature)
    run: Any = SimpleNamespace(algorithm=GRPO(), filter_groups=False, layout=layout, sampling=sampling)
    drawn: Any = SimpleNamespace(judged=judged, spread=torch.zeros(4))
    [found] = RolloutWindows.check_spread(run, drawn)
    assert says in found.render()


@pytest.mark.parametrize(("ended", "says"), [(0, True), (1, False)])
def test_equal_rewards_of_answers_that_were_all_cut_off_are_told_so(ended: int, says: bool) -> None:
    given, real = torch.zeros(4, dtype=torch.float64), torch.tensor([True, True, True, False])
    ends = torch.tensor([False, False, bool(ended), True])  # the last row is padding
    judged = RolloutRewards(real, given, ends, given, real, given[None])
    layout = SimpleNamespace(group=2, answers=4)
    run: Any = SimpleNamespace(
        algorithm=GRPO(), filter_groups=False, layout=layout, sampling=RolloutSampling(0.7)
    )
    drawn: Any = SimpleNamespace(judged=judged, spread=torch.zeros(4))
    [found] = RolloutWindows.check_spread(run, drawn)
    assert ("no answer came to its end: raise max_completion_length" in found.render()) == says
    assert "a reward that distinguishes" in found.render()


def test_a_reward_compares_the_expected_answer_as_answers_are_written() -> None:
    """Without special tokens, as the completion is; a function of the user's own gets the row as it is."""
    row = {"prompt": "?", "answer": "<odd>odd<odd>"}
    table: Any = SimpleNamespace(facts=lambda document: dict(row))
    answerer = RolloutGenerator(
        Runner(), None, TOKENIZER, Scorer([RewardSpec("exact_match")]), lambda root: Speaker()
    )  # type: ignore[arg-type, return-value]
    request, completion = Request((3,), 0, 4), Completion((7,), torch.zeros(1), True)
    (sample,), scored = answerer.judged(table, [0], [request], [completion], 1)
    assert scored.total == [1.0] and sample.columns["answer"] == row["answer"] and sample.answer == "odd"
