"""``generation:`` and ``training.rollout:`` — how answers are generated and scored."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field

from paceline.config.sections.extensions import own_name, to_items
from paceline.config.sections.types import (
    Bool,
    Float,
    Int,
    Mapping,
    OptBool,
    OptFloat,
    OptInt,
    OptText,
    Section,
    Text,
    Texts,
    Word,
)
from paceline.core.json_types import Json

OPTIONS_OF_REWARDS = (
    "exact_match: `ignore_case`; numeric: `anywhere`; math_verify: `after`, `tag`; regex: `pattern`,"
    " `whole`; format: `names`; length: `target`, `unit`; overlong: `max_length`, `buffer`; code: `tests`,"
    " `entry_point`, `seconds`, `memory_mb`, `partial`; judge: `url`, `model`, `prompt`, `api_key_env`,"
    " `concurrency`, `timeout`, `max_tokens`, `budget`; model: `model`; your own function: its keyword"
    " arguments"
    " (docs/how-to/rollouts.md)."
)


BUILT_IN_REWARDS = (
    "exact_match",
    "numeric",
    "math_verify",
    "regex",
    "format",
    "length",
    "overlong",
    "ended",
    "code",
    "judge",
    "model",
)


class RewardItem(Section):
    """One reward function of a weighted sum."""

    name: Annotated[str, BeforeValidator(own_name("rewards", BUILT_IN_REWARDS))] = Field(
        description=(
            "exact_match, numeric, math_verify, regex, format, length, overlong, ended, code, judge (a "
            "model behind a server), model (the score of a reward model, `options: {model: FOLDER}`), or "
            "your own function as module:function."
        )
    )
    weight: Float = Field(default=1.0, description="Weight in the sum of rewards.")
    options: Mapping = Field(
        default={}, description=f"Its keyword arguments, e.g. `{{pattern: '^[0-9]+$'}}`. {OPTIONS_OF_REWARDS}"
    )


class ServerOptions(Section):
    """A generation server (vLLM's OpenAI-compatible one), sent the policy's weights before each rollout."""

    url: Text = Field(description="With training.rollout.server, its address: `http://host:port`.")
    model: OptText = Field(
        default=None,
        description="Name under which the server serves the model; requested from the server when empty.",
    )
    timeout: Float = Field(
        default=600.0, gt=0, description="Time limit for one answer in seconds, including retries."
    )
    sync_timeout: Float = Field(
        default=600.0, gt=0, description="Time limit for the server to load new weights, in seconds."
    )
    weights_dir: OptText = Field(
        default=None,
        description=(
            "A folder for the weights that the server can read under the same path; "
            "rollout-weights in the run directory when empty."
        ),
    )
    api_key_env: OptText = Field(
        default=None,
        description=(
            "Name of the environment variable with the server's API key; the key itself is "
            "never stored in a file."
        ),
    )
    concurrency: Int = Field(default=64, ge=1, description="Concurrent requests per process.")


SERVED = "policy"  # the model's name at servers that the run starts


class StartOptions(Section):
    """Generation servers (vLLM's) that the run starts on its own machine and ends with itself."""

    count: Int = Field(default=1, ge=1, description="With training.rollout.start, how many servers.")
    tensor_parallel_size: Int = Field(default=1, ge=1, description="Cards of each server.")
    gpu_memory_utilization: Float = Field(
        default=0.9, gt=0, le=1, description="Share of each of its cards' memory that a server takes."
    )
    sleep: Bool = Field(
        default=False,
        description=(
            "Put the servers on the cards of training: they sleep while the model is trained. Otherwise they "
            "take the cards after them."
        ),
    )
    port: Int = Field(
        default=8200, ge=1, le=65000, description="Port of the first one on loopback; the others' follow."
    )
    interpreter: OptText = Field(
        default=None,
        description="Interpreter of the environment with vLLM; the run's own when empty.",
    )
    timeout: Float = Field(default=600.0, gt=0, description="Time limit in seconds until all of them answer.")
    arguments: Texts = Field(
        default=(), description="Further arguments of vLLM's server, e.g. `[--block-size, 32]`."
    )


def to_servers(value: Json) -> Json:
    """Read one server or a list of them; a text is a URL."""
    servers = value if isinstance(value, list | tuple) else [value]
    return [{"url": server} if isinstance(server, str) else server for server in servers]


class RolloutOptions(Section):
    """Generation and scoring of answers; option names as in TRL's GRPOConfig where it has them."""

    rewards: Annotated[tuple[RewardItem, ...], BeforeValidator(to_items)] = Field(
        default=(),
        description=(
            "With an on-policy algorithm, the reward functions that score its answers: names, "
            "or `{name, weight, options}`."
        ),
    )
    on_reward_error: Annotated[str, Word("error", "zero", "skip")] = Field(
        default="error",
        description=(
            "When a reward function raises, times out or returns no number: end the run with "
            "an error, score 0, or skip the answer."
        ),
    )
    reward_timeout: Float = Field(
        default=60.0, gt=0, description="Time limit for one call of a reward function, in seconds."
    )
    allow_code_execution: Bool = Field(
        default=False,
        description="Allow the reward `code` to run programs written by the model, in a sandbox.",
    )
    allow_unsandboxed_code: Bool = Field(
        default=False,
        description=(
            "Where the machine cannot sandbox, allow the reward `code` to run the model's "
            "programs without one: they can do whatever this user can."
        ),
    )
    num_generations: OptInt = Field(
        default=None,
        ge=1,
        description=(
            "Answers per prompt; when empty 8 with grpo, 2 with rloo, else 1. Batch sizes "
            "count answers, not prompts."
        ),
    )
    max_completion_length: Int = Field(
        default=256,
        ge=1,
        description=(
            "Maximum answer length in tokens; prompt and answer together have at most data.max_length."
        ),
    )
    temperature: Float = Field(
        default=1.0,
        ge=0,
        description=(
            "Sampling temperature; the trained policy's log-probabilities use it too. 0: greedy decoding."
        ),
    )
    top_p: Float = Field(
        default=1.0, gt=0, le=1, description="Sample from the smallest set of tokens with this probability."
    )
    top_k: Int = Field(default=0, ge=0, description="Sample from the k likeliest tokens; 0 means no limit.")
    steps_per_generation: OptInt = Field(
        default=None,
        ge=1,
        description=(
            "Micro-batches per rollout, a multiple of gradient_accumulation_steps; one "
            "optimizer step's when empty."
        ),
    )
    generation_rows: Int = Field(
        default=64, ge=1, description="Batch size of generation: answers that a process decodes at a time."
    )
    gather_for_generation: OptBool = Field(
        default=None,
        description=(
            "Under FSDP and ZeRO-3. true: every process gathers the whole model to generate; "
            "false: all processes generate together and gather one layer at a time; empty: "
            "gathered where the plan finds that the model fits."
        ),
    )
    old_logprobs: Annotated[str, Word("auto", "sampling", "recompute")] = Field(
        default="auto",
        description=(
            "Source of π_old's log-probabilities: those recorded in sampling, or recomputed "
            "by a forward pass; auto uses sampling's in float32 and float64 without a server."
        ),
    )
    server: ServerOptions | None = Field(
        default=None,
        description=(
            "Generate the answers on this server instead of in the training processes: `{url: "
            "http://127.0.0.1:8000}`."
        ),
    )
    servers: Annotated[tuple[ServerOptions, ...], BeforeValidator(to_servers)] = Field(
        default=(),
        description=(
            "Several such servers that share the work: URLs, or mappings as `server` takes them. One that "
            "fails is left out until it answers again."
        ),
    )
    weights: Annotated[str, Word("auto", "adapter", "transfer", "folder")] = Field(
        default="auto",
        description=(
            "How servers get the weights: adapter (LoRA's files alone), transfer (the model, merged, into "
            "memory) or folder (its files); auto: the first of these that every server takes."
        ),
    )
    start: StartOptions | None = Field(
        default=None,
        description=(
            "Start such servers with the run, on loopback, and end them with it: `{count: 2, "
            "tensor_parallel_size: 2}`. Their logs are logs/server-*.log."
        ),
    )
    verify_weights: Bool = Field(
        default=True,
        description=(
            "After each change of a server's weights compare its log-probabilities of a fixed text with "
            "the trained model's, and refuse a server that computes with other weights."
        ),
    )
    max_sampling_gap: OptFloat = Field(
        default=None,
        gt=0,
        description=(
            "End the run where the mean difference between sampling's log-probabilities and training's is "
            "larger, in nats; when empty 0.02 in float32 and float64, 0.5 in 16 bit, none for a server with "
            "top_p or top_k."
        ),
    )
    filter_groups: Bool = Field(
        default=False,
        description=(
            "Train only on prompts whose answers differ in score. The others have no "
            "advantage: they cost as much, and only the KL term learns from them."
        ),
    )
    max_redraws: Int = Field(
        default=0,
        ge=0,
        description=(
            "With filter_groups, how many times prompts whose answers all score the same are "
            "replaced by the next prompts of the data (DAPO's dynamic sampling)."
        ),
    )
    num_samples_shown: Int = Field(
        default=2, ge=0, description="Answers per rollout that are logged with their rewards."
    )

    @property
    def all_servers(self) -> tuple[ServerOptions, ...]:
        """The servers that write the answers; none: the training processes do."""
        if self.start is not None:
            ports = range(self.start.port, self.start.port + self.start.count)
            return tuple(ServerOptions(url=f"http://127.0.0.1:{port}", model=SERVED) for port in ports)
        return self.servers or (() if self.server is None else (self.server,))


class GenerationSection(Section):
    """Generation in `paceline chat RUN`; its options (`--temperature 0.7`) take precedence."""

    max_new_tokens: Int = Field(default=128, ge=1, description="Maximum answer length in tokens.")
    temperature: Float = Field(default=0.0, ge=0, description="Sampling temperature; 0: greedy decoding.")
    top_p: Float = Field(
        default=1.0, gt=0, le=1, description="Sample from the smallest set of tokens with this probability."
    )
    top_k: Int = Field(default=0, ge=0, description="Sample from the k likeliest tokens; 0 means no limit.")
