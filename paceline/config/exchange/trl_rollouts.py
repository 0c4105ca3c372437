"""TRL's GRPO and RLOO: how long rows are, where answers come from, and rewards."""

from __future__ import annotations

from paceline.config.exchange.reading import KeyReader
from paceline.core.json_types import Json, JsonObject

#: TRL's and Open-R1's reward functions that one of ours computes alike: theirs → ours
REWARDS: dict[str, JsonObject] = {
    "trl.rewards.think_format_reward": {"name": "format", "options": {"names": ["think"]}},
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
    own = [key for key in reading.given if key.startswith("vllm_") and not reading.decided(key)]
    reading.mapped(("use_vllm", *own), ("training.rollout.server",))


def rewards(reading: KeyReader) -> None:
    """Decide the reward functions, their weights, and a reward model."""
    names = reading.given.get("reward_funcs")
    weights = reading.given.get("reward_weights")
    model = reading.given.get("reward_model_name_or_path")
    listed = [str(name) for name in names] if isinstance(names, list) else []
    shares = list(weights) if isinstance(weights, list) else [1.0] * (len(listed) + bool(model))
    made: list[Json] = []
    lost: list[str] = []
    if isinstance(model, str) and model:
        reading.mapped("reward_model_name_or_path", ("training.rollout.rewards",))
        made.append({"name": "model", "options": {"model": model}})
    for name in listed:
        known = REWARDS.get(name)
        made.append(dict(known)) if known else lost.append(name)
    if lost:
        says = f"reward functions of that system: {', '.join(lost)}; write them as training.rollout.rewards"
        reading.lose(
            "reward_funcs", f"{says} (module:function; they get texts, not messages: docs/rollouts.md)"
        )
        if "reward_weights" in reading.given:
            reading.lose("reward_weights", "the weights of rewards that are not known here")
    elif made:
        for item, share in zip(made, shares, strict=False):
            if isinstance(item, dict):
                item["weight"] = share
        reading.mapped(("reward_funcs", "reward_weights"), ("training.rollout.rewards",))
    if made:
        reading.set("training.rollout.rewards", made, "reward_funcs")
