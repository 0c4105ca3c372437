"""Texts of conversations by the model makers' own encoders: ``python encoder_oracle.py``, JSON in, JSON out.

Runs apart from the project with openai-harmony and mistral-common on its path; imports nothing of Paceline.
Input: ``{"encoder": "harmony" | "v1" | "v3" | "v3-tekken" | "v7", "chats": [[{role, content, …}], …],
"tools": […]}``; output: one text, or null where the encoder refuses, a chat.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any


def harmony(chats: list[list[dict[str, Any]]], tools: list[dict[str, Any]]) -> list[str | None]:
    import openai_harmony as oh

    encoding = oh.load_harmony_encoding(oh.HarmonyEncodingName.HARMONY_GPT_OSS)
    return [encoding.decode_utf8(_harmony_tokens(oh, encoding, chat, tools)) for chat in chats]


def _harmony_tokens(oh: Any, encoding: Any, chat: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
    role, made = oh.Role, []
    developer = oh.DeveloperContent.new()
    if tools:
        functions = [tool["function"] for tool in tools]
        developer = developer.with_function_tools(
            [
                oh.ToolDescription.new(f["name"], f["description"], parameters=f["parameters"])
                for f in functions
            ]
        )
    called = ""
    for turn in chat:
        say = oh.Message.from_role_and_content
        if turn["role"] == "system":
            developer = developer.with_instructions(turn["content"])
        elif turn["role"] == "user":
            made.append(say(role.USER, turn["content"]))
        elif turn["role"] == "tool":
            author = oh.Author.new(role.TOOL, f"functions.{called}")
            result = oh.Message.from_author_and_content(author, json.dumps(turn["content"]))
            made.append(result.with_channel("commentary").with_recipient("assistant"))
        else:
            if turn.get("reasoning_content"):
                made.append(say(role.ASSISTANT, turn["reasoning_content"]).with_channel("analysis"))
            for call in turn.get("tool_calls", ()):
                called = call["function"]["name"]
                one = say(role.ASSISTANT, json.dumps(call["function"]["arguments"]))
                one = one.with_channel("commentary").with_recipient(f"functions.{called}")
                made.append(one.with_content_type("json"))
            if turn["content"]:
                made.append(say(role.ASSISTANT, turn["content"]).with_channel("final"))
    first = oh.SystemContent.new().with_conversation_start_date("2026-01-02")
    begin = [oh.Message.from_role_and_content(role.SYSTEM, first)]
    if tools or any(turn["role"] == "system" for turn in chat):
        begin.append(oh.Message.from_role_and_content(role.DEVELOPER, developer))
    whole = oh.Conversation.from_messages([*begin, *made])
    config = oh.RenderConversationConfig(auto_drop_analysis=False)
    return encoding.render_conversation_for_training(whole, config)


def mistral(version: str, chats: list[list[dict[str, Any]]], tools: list[dict[str, Any]]) -> list[str | None]:
    import mistral_common
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.protocol.instruct.validator import ValidationMode
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

    names = {
        "v1": "tokenizer.model.v1",
        "v3": "mistral_instruct_tokenizer_240323.model.v3",
        "v3-tekken": "tekken_240718.json",
        "v7": "mistral_instruct_tokenizer_241114.model.v7",
    }
    folder = Path(mistral_common.__file__).parent / "data"
    tokenizer = MistralTokenizer.from_file(folder / names[version], mode=ValidationMode.finetuning)
    texts: list[str | None] = []
    for chat in chats:
        request = ChatCompletionRequest.model_validate({"messages": chat, "tools": tools or None})
        try:
            text = str(tokenizer.encode_chat_completion(request).text)
        except Exception as error:
            print(f"{version}: {type(error).__name__}: {error}", file=sys.stderr)
            texts.append(None)
            continue
        texts.append(re.sub("▁", " ", text).replace("<0x0A>", "\n"))
    return texts


if __name__ == "__main__":
    job = json.load(sys.stdin)
    name, chats, tools = job["encoder"], job["chats"], job["tools"]
    json.dump(harmony(chats, tools) if name == "harmony" else mistral(name, chats, tools), sys.stdout)
