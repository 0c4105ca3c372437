"""``training.rollout:`` and ``training.grpo:`` — what the model answers in training, how it is judged, and what is learnt of it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from paceline.config.sections.types import (
    Bool,
    Float,
    Int,
    Mapping,
    OptBool,
    OptFloat,
    OptInt,
    OptPath,
    OptText,
    Section,
    Text,
    Word,
)

OPTIONS_OF_REWARDS = (
    "exact_match: `ignore_case`; numeric: `anywhere`; regex: `pattern`, `whole`; format: `names`; length: `target`, `unit`; "
    "overlong: `max_length`, `buffer`; code: `tests`, `entry_point`, `seconds`, `memory_mb`; model: `model`; "
    "of a function of your own its own (docs/rollouts.md)."
)


class RewardItem(Section):
    """One reward function of a weighted sum."""

    name: Text = Field(
        description="exact_match, numeric, regex, format, length, overlong, ended, code, model (what a reward model says, `options: {model: FOLDER}`), or a function of your own as module:function."
    )
    weight: Float = Field(default=1.0, description="Its weight in the sum.")
    options: Mapping = Field(
        default={}, description=f"Its keyword arguments, e.g. `{{pattern: '^[0-9]+$'}}`. {OPTIONS_OF_REWARDS}"
    )


def to_rewards(value: Any) -> Any:
    """A list of rewards from a name, a comma list of names, one mapping, or a list of either."""
    if isinstance(value, str):
        return [{"name": part.strip()} for part in value.split(",") if part.strip()]
    if isinstance(value, dict):
        return [value]
    if isinstance(value, (list, tuple)):
        return [{"name": item} if isinstance(item, str) else item for item in value]
    return value


class ServerOptions(Section):
    """A server that writes the answers (vLLM's OpenAI-style one), given the policy's weights before each rollout."""

    url: Text = Field(description="With training.rollout.server, where it listens: `http://host:port`.")
    model: OptText = Field(
        default=None, description="The name it serves the model under; asked of the server when empty."
    )
    timeout: Float = Field(default=600.0, gt=0, description="Seconds one answer may take, trying again included.")
    sync_timeout: Float = Field(default=600.0, gt=0, description="Seconds the server may take to load new weights.")
    weights_dir: OptText = Field(
        default=None,
        description="A folder that the server sees under the same path, for the weights; rollout-weights in the run's folder when empty.",
    )
    api_key_env: OptText = Field(
        default=None,
        description="The environment variable that holds the server's key; the key itself is never in a file.",
    )
    concurrency: Int = Field(default=64, ge=1, description="Answers a process has under way at the server.")


class RolloutOptions(Section):
    """How prompts are answered and answers are judged, by the names of TRL's GRPOConfig where it has one."""

    rewards: Annotated[tuple[RewardItem, ...], BeforeValidator(to_rewards)] = Field(
        default=(),
        description="With an algorithm that learns from the model's own answers, what an answer is judged by: names, or `{name, weight, options}`.",
    )
    on_reward_error: Annotated[str, Word("error", "zero", "skip")] = Field(
        default="error",
        description="A reward that raises, hangs or gives no number: end the run by name, count 0, or leave the answer out.",
    )
    reward_timeout: Float = Field(default=60.0, gt=0, description="Seconds a reward function may take for one call.")
    allow_code_execution: Bool = Field(
        default=False, description="Let the reward `code` run programs of the model, in a sandbox."
    )
    allow_unsandboxed_code: Bool = Field(
        default=False,
        description="Where the machine gives no sandbox, let the reward `code` run programs of the model without one: they may change what this user may change.",
    )
    num_generations: OptInt = Field(
        default=None,
        ge=1,
        description="Answers to each prompt, when empty 8 with grpo, 2 with rloo, else 1; batch sizes count answers, not prompts.",
    )
    max_completion_length: Int = Field(
        default=256, ge=1, description="Longest answer in tokens; prompt and answer together at most data.max_length."
    )
    temperature: Float = Field(
        default=1.0, ge=0, description="Of sampling, and of the policy that is trained; 0 takes the likeliest token."
    )
    top_p: Float = Field(
        default=1.0, gt=0, le=1, description="Sample from the smallest set of tokens with this probability."
    )
    top_k: Int = Field(default=0, ge=0, description="Sample from the k likeliest tokens; 0 means no limit.")
    steps_per_generation: OptInt = Field(
        default=None,
        ge=1,
        description="Micro-batches a rollout is cut into, a multiple of gradient_accumulation_steps; one optimizer step's worth when empty.",
    )
    generation_rows: Int = Field(default=64, ge=1, description="Answers a process decodes together.")
    gather_for_generation: OptBool = Field(
        default=None,
        description="Under FSDP and ZeRO-3: every process holds the whole model while it writes answers (true), or all go through it together, a layer gathered at a time (false); when empty, whole where the plan says that it fits.",
    )
    old_logprobs: Annotated[str, Word("auto", "sampling", "recompute")] = Field(
        default="auto",
        description="Log-probabilities of π_old: those of sampling, or a forward of training's; auto takes sampling's in float32 and float64 without a server.",
    )
    server: ServerOptions | None = Field(
        default=None,
        description="Answers are written by this server, and not by the processes that train: `{url: http://127.0.0.1:8000}`.",
    )
    filter_groups: Bool = Field(
        default=False,
        description="Train on prompts alone whose answers differ in score: of the others nothing is learnt but the KL, and they cost as much.",
    )
    max_redraws: Int = Field(
        default=0,
        ge=0,
        description="With filter_groups, how often prompts whose answers score the same are replaced by the next ones of the data and answered, until all differ (DAPO's dynamic sampling).",
    )
    num_samples_shown: Int = Field(
        default=2, ge=0, description="Answers of each rollout that go into the log with their rewards."
    )


class GrpoOptions(Section):
    """GRPO and its kin, by the names of TRL's GRPOConfig where it has one."""

    beta: Float = Field(
        default=0.0,
        ge=0,
        description="With algorithm: grpo, weight of the KL to the reference; 0: no reference is kept.",
    )
    ref_model: OptPath = Field(
        default=None, description="The reference: a folder or hub name; the model that training starts from when empty."
    )
    kl_estimator: Annotated[str, Word("k1", "k2", "k3")] = Field(
        default="k3", description="Estimator of the KL in the loss."
    )
    use_bias_correction_kl: Bool = Field(
        default=False, description="Multiply the KL term by the importance ratio (TRL's default, not the paper's)."
    )
    epsilon: Float = Field(default=0.2, ge=0, lt=1, description="The ratio is clipped below 1 - epsilon.")
    epsilon_high: OptFloat = Field(
        default=None,
        ge=0,
        description="… and above 1 + epsilon_high; epsilon when empty (DAPO: 0.28). With loss_type: cispo the largest weight itself, above 1 (ScaleRL: 5.0).",
    )
    delta: OptFloat = Field(
        default=None, gt=1, description="Upper bound of the ratio where the advantage is negative; none when empty."
    )
    loss_type: Annotated[str, Word("grpo", "dapo", "bnpo", "dr_grpo", "cispo")] = Field(
        default="dapo",
        description="What the sum is divided by: dapo tokens, grpo answers (each a mean over its tokens), dr_grpo a constant; cispo tokens, and the importance weight is bounded in place of the loss.",
    )
    scale_rewards: Annotated[str, Word("group", "batch", "none", false="none")] = Field(
        default="group", description="Advantages are divided by the spread of the group's, or of all rewards, or not."
    )
    importance_sampling_level: Annotated[str, Word("token", "sequence")] = Field(
        default="token", description="The ratio is that of each token, or the mean over the answer (GSPO)."
    )
    num_iterations: Int = Field(default=1, ge=1, description="Passes over each rollout.")
    mask_truncated_completions: Bool = Field(
        default=False, description="Learn nothing from answers that did not end by themselves (DAPO's overlong filter)."
    )
    rollout_correction: Annotated[str, Word("none", "truncate", "mask", false="none")] = Field(
        default="none", description="Weigh tokens by how much likelier training finds them than sampling did."
    )
    rollout_correction_level: Annotated[str, Word("token", "sequence")] = Field(
        default="token", description="That weight is of each token, or of the whole answer."
    )
    rollout_correction_cap: Float = Field(
        default=2.0, gt=0, description="That weight is truncated here, or masked above it."
    )
