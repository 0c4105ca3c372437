"""Rules for on-policy algorithms: unsupported combinations, and settings under which nothing is learnt."""

from __future__ import annotations

from collections.abc import Iterator

from paceline.config.sections.rollout import RolloutOptions
from paceline.core.diagnostics import Diagnostic, Severity
from paceline.rules import codes
from paceline.rules.base import Context, Rule
from paceline.rules.sharding import in_words, places, sharding_axes, sharding_keys

_ROLLOUT = "training.rollout"
MODEL = "model"  # name of the reward that is a model, and of its option


def _rollout(c: Context) -> RolloutOptions | None:
    t = c.config.training
    return (t.rollout or RolloutOptions()) if c.algorithm.on_policy else None


def strategies(c: Context) -> Iterator[Diagnostic]:
    """strategy.rollouts"""
    spec = c.algorithm
    options = spec.generation(c.config.training)
    if options is None:
        return
    # a scalar head cannot be split
    scores = spec.value_model or any(r.name == MODEL for r in options.rewards)
    wrong = sharding_keys(c, sharding_axes(c, scores=scores))
    if wrong:
        who = spec.name if spec.value_model or not scores else f"{spec.name} with a reward model"
        yield c.problem(
            codes.STRATEGY_ROLLOUTS,
            f"{who} generates answers token by token with the complete model on every rank, but"
            f" {in_words(wrong)} shards it",
            "training.algorithm",
            *places(wrong),
            hint="set distributed_strategy: ddp, zero1 to zero3, or fsdp"
            + ("" if scores or spec.lends_head else ", with tp_size"),
        )


def rewards(c: Context) -> Iterator[Diagnostic]:
    """rollout.no_rewards, rewards.code_off"""
    options = _rollout(c)
    if options is None:
        return
    if not options.rewards and c.starting:
        yield c.problem(
            codes.ROLLOUT_NO_REWARDS,
            "no rewards are defined, so answers cannot be scored",
            f"{_ROLLOUT}" if c.config.training.rollout is None else f"{_ROLLOUT}.rewards",
            found="no training.rollout.rewards",
            hint="rollout:\n               rewards: [exact_match]",
        )
    if any(r.name == "code" for r in options.rewards) and not options.allow_code_execution:
        yield c.problem(
            codes.REWARDS_CODE_OFF,
            "the reward 'code' runs programs that the model writes",
            f"{_ROLLOUT}.allow_code_execution",
            hint="set allow_code_execution: true, on a machine where this is acceptable",
        )


def code_sandbox(c: Context) -> Iterator[Diagnostic]:
    """rewards.no_isolation, rewards.unsandboxed, rewards.no_code"""
    options = _rollout(c)
    if options is None:
        return
    runs_code = options.allow_code_execution and any(r.name == "code" for r in options.rewards)
    if options.allow_unsandboxed_code and not runs_code:
        yield c.problem(
            codes.REWARDS_NO_CODE,
            "no reward of this run executes code",
            f"{_ROLLOUT}.allow_unsandboxed_code",
            hint="remove it",
            severity=Severity.WARNING,
        )
    if not runs_code or not c.facts.code_sandbox:
        return
    if options.allow_unsandboxed_code:
        yield c.problem(
            codes.REWARDS_UNSANDBOXED,
            "programs written by the model will run without a sandbox: they can overwrite, delete"
            " and read everything that this user can, and use the network",
            f"{_ROLLOUT}.allow_unsandboxed_code",
            found=c.facts.code_sandbox,
            hint=(
                "use a machine that supports the sandbox (paceline explain rewards.no_isolation),"
                " or one where nothing can be lost"
            ),
            severity=Severity.WARNING,
        )
    else:
        yield c.problem(
            codes.REWARDS_NO_ISOLATION,
            "this machine cannot isolate the model's programs in a sandbox",
            f"{_ROLLOUT}.allow_code_execution",
            found=c.facts.code_sandbox,
            hint=(
                "use Linux 5.12 or newer with user namespaces for this user, a reward that runs no"
                " code, or allow_unsandboxed_code: true where losing all files of this user is"
                " acceptable"
            ),
        )


def reward_models(c: Context) -> Iterator[Diagnostic]:
    """rewards.model_options, rewards.two_models"""
    options = _rollout(c)
    judges = [r for r in options.rewards if r.name == MODEL] if options is not None else []
    for judge in judges:
        if (
            set(judge.options) != {MODEL}
            or not isinstance(judge.options[MODEL], str)
            or not judge.options[MODEL]
        ):
            yield c.problem(
                codes.REWARDS_MODEL_OPTIONS,
                "the reward 'model' takes the option 'model' and no other",
                f"{_ROLLOUT}.rewards",
                found=f"options: {dict(judge.options)}",
                hint="- {name: model, options: {model: outputs/reward/model}}",
            )
    if len(judges) > 1:
        yield c.problem(
            codes.REWARDS_TWO_MODELS,
            "a run supports one reward model; you can add functions of your own",
            f"{_ROLLOUT}.rewards",
            found=f"{len(judges)} rewards named 'model'",
            hint="keep one of them, or use a function (module:function) that calls the other",
        )


def no_kl(c: Context) -> Iterator[Diagnostic]:
    """ppo.no_kl"""
    spec, training = c.algorithm, c.config.training
    if (
        spec.on_policy
        and spec.kl
        and not spec.options_of(training)[spec.kl]
        and spec.model_named(training, "reference")
    ):
        yield c.problem(
            codes.PPO_NO_KL,
            "without a KL the reference is not used",
            f"{spec.key}.{spec.named['reference']}",
            f"{spec.key}.{spec.kl}",
            hint=f"set {spec.kl}: 0.05, or remove {spec.named['reference']}",
        )


def lengths(c: Context) -> Iterator[Diagnostic]:
    """rollout.length"""
    options = _rollout(c)
    if options is not None and options.max_completion_length >= c.config.data.max_length:
        yield c.problem(
            codes.ROLLOUT_LENGTH,
            "the longest answer leaves no room for a prompt: data.max_length covers prompt and"
            " answer together",
            "data.max_length",
            found=(
                f"max_completion_length: {options.max_completion_length}, data.max_length:"
                f" {c.config.data.max_length}"
            ),
            hint=f"data.max_length: {2 * options.max_completion_length}",
        )


def groups(c: Context) -> Iterator[Diagnostic]:
    """rollout.one_answer, rollout.greedy, rollout.filter_groups, rollout.max_redraws"""
    options = _rollout(c)
    if options is None:
        return
    if options.max_redraws and not options.filter_groups:
        yield c.problem(
            codes.ROLLOUT_MAX_REDRAWS,
            "max_redraws replaces prompts that filter_groups drops, but filter_groups is off",
            f"{_ROLLOUT}.max_redraws",
            f"{_ROLLOUT}.filter_groups",
            hint="set filter_groups: true, or max_redraws: 0",
        )
    training = c.config.training
    if not c.algorithm.uses_group_baseline(training):
        if options.filter_groups:
            yield c.problem(
                codes.ROLLOUT_FILTER_GROUPS,
                f"{c.algorithm.name} does not compare answers with each other, so it can train on"
                " equal scores as well as on others",
                f"{_ROLLOUT}.filter_groups",
                hint="filter_groups: false",
            )
        return
    if c.algorithm.group_size(training) == 1:
        yield c.problem(
            codes.ROLLOUT_ONE_ANSWER,
            "the advantage of an answer is its score relative to the other answers to its prompt,"
            " but there are no others: there would be no gradient",
            f"{_ROLLOUT}.num_generations",
            found=f"num_generations: {c.algorithm.group_size(training)}",
            hint="num_generations: 8",
            severity=Severity.WARNING,
        )
    elif options.temperature == 0:
        yield c.problem(
            codes.ROLLOUT_GREEDY,
            "at temperature 0 all answers to a prompt are identical: there would be no gradient",
            f"{_ROLLOUT}.temperature",
            hint="temperature: 1.0",
            severity=Severity.WARNING,
        )


def sections(c: Context) -> Iterator[Diagnostic]:
    """train.algorithm_section"""
    t = c.config.training
    learners = [spec.name for spec in c.algorithms if spec.on_policy]
    wrong = [name for name in learners if getattr(t, name) is not None and t.algorithm != name]
    wrong += ["rollout"] if t.rollout is not None and not c.algorithm.on_policy else []
    for name in wrong:
        yield c.problem(
            codes.TRAIN_ALGORITHM_SECTION,
            f"training.{name} configures training on the model's own answers, but this run's"
            f" algorithm is {t.algorithm}",
            f"training.{name}",
            "training.algorithm",
            found=f"algorithm: {t.algorithm}",
            hint=(
                f"set algorithm: {' or '.join(learners) if name == 'rollout' else name}, or remove the"
                " section"
            ),
            severity=Severity.WARNING,
        )


ROLLOUT_RULES: tuple[Rule, ...] = (
    strategies,
    rewards,
    code_sandbox,
    reward_models,
    no_kl,
    lengths,
    groups,
    sections,
)
