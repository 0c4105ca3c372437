"""TRL's GRPO and RLOO: how long rows are, where answers come from, and rewards."""

from __future__ import annotations

from paceline.config.import_export.key_reader import KeyReader
from paceline.core.json_types import Json, JsonObject

#: of TRL's think_format_reward: one thought first, then anything
_THOUGHT = r"^<think>(?!.*<think>)(.*?)</think>.*$"
#: TRL's reward functions that one of ours computes alike: theirs → ours
REWARDS: dict[str, JsonObject] = {
    "think_format_reward": {"name": "regex", "options": {"pattern": _THOUGHT}},
}


def lengths(reading: KeyReader) -> None:
    """Ours limits prompt and answer together; TRL limits answers, and prompts no longer."""
    answer, prompt = reading.value("max_completion_length"), reading.given.get("max_prompt_length")
    whole = (answer if isinstance(answer, int) else 512) + (prompt if isinstance(prompt, int) else 2048)
    reading.set(
        "data.max_length",
        whole,
        "max_completion_length",
        "prompt and answer together; TRL does not limit prompts",
    )
    reading.mapped(("max_prompt_length",), ("data.max_length",), "longer prompts are cut")


def server(reading: KeyReader) -> None:
    """Take over a server of vLLM that generates the answers."""
    host, port = reading.text("vllm_server_host"), reading.value("vllm_server_port")
    url = str(
        reading.given.get("vllm_server_base_url")
        or f"http://{'127.0.0.1' if host in ('', '0.0.0.0') else host}:{port}"
    )
    reading.set("training.rollout.server", {"url": url}, "vllm_server_base_url")
    if reading.facts["algorithm"] == "grpo":
        _correction(reading)
    own = [key for key in reading.given if key.startswith("vllm_") and not reading.decided(key)]
    reading.mapped(("use_vllm", *own), ("training.rollout.server",))


def _correction(reading: KeyReader) -> None:
    """Set the weight that corrects for the server's probabilities, which TRL has by default."""
    key = "vllm_importance_sampling_correction"
    level, _, kind = reading.text("vllm_importance_sampling_mode").partition("_")
    cap = next(
        (
            c
            for c in map(reading.value, ("vllm_importance_sampling_cap", "vllm_importance_sampling_clip_max"))
            if c
        ),
        None,
    )
    if not reading.on(key):
        reading.keep(key, "training.grpo.rollout_correction", "none")
        return
    path = "training.grpo.rollout_correction"
    for option, value in (("", kind), ("_level", level), ("_cap", cap)):
        reading.set(f"{path}{option}", value, key) if value is not None else None
    reading.mapped([k for k in reading.given if k.startswith("vllm_importance_")], (path,))
    if reading.is_given("vllm_importance_sampling_clip_min"):
        reading.lose("vllm_importance_sampling_clip_min", "the weight has an upper bound alone")


def rewards(reading: KeyReader) -> None:
    """Decide the reward functions, their weights, and a reward model."""
    named, weights = reading.given.get("reward_funcs"), reading.given.get("reward_weights")
    model = reading.given.get("reward_model_name_or_path")
    names = [str(name) for name in (named if isinstance(named, list) else [named] if named else [])]
    found: list[JsonObject | None] = [REWARDS.get(name.removeprefix("trl.rewards.")) for name in names]
    if isinstance(model, str) and model:
        reading.mapped("reward_model_name_or_path", ("training.rollout.rewards",))
        found.insert(0, {"name": "model", "options": {"model": model}})
    listed = weights if isinstance(weights, list) else [weights] if weights is not None else []
    shares = listed or [1.0] * len(found)
    made: list[Json] = [
        {**one, "weight": share} for one, share in zip(found, shares, strict=False) if one is not None
    ]
    if made:
        reading.set("training.rollout.rewards", made, "reward_funcs")
    lost = [name for name, one in zip(reversed(names), reversed(found), strict=False) if one is None]
    if len(shares) != len(found):
        reading.lose("reward_weights", f"{len(shares)} weights for {len(found)} rewards, which TRL refuses")
    if lost:
        says = f"reward functions of that system: {', '.join(reversed(lost))}; write them as"
        says += " training.rollout.rewards (module:function; they get texts, not messages: docs/rollouts.md)"
        reading.lose("reward_funcs", says)
        if listed and not reading.decided("reward_weights"):
            reading.lose("reward_weights", "the weights of rewards that are not known here")
    elif made and not reading.decided("reward_weights"):
        reading.mapped(("reward_funcs", "reward_weights"), ("training.rollout.rewards",))
