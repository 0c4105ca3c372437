"""Put the generated requests to a real vLLM server and write down its answers.

``python tests/peers/vllm/record.py URL``: there it serves what ``vllm_asked.write_model`` wrote, as "mine".
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import httpx

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]

import vllm_asked as asked  # noqa: E402

RECORDED = HERE / "recorded.json"


def answered(client: Any, method: str, path: str, **more: Any) -> dict[str, Any]:
    """Return status and answer: JSON, or the events of a stream."""
    found = client.request(method, path, **more)
    answer: dict[str, Any] = {"status": found.status_code}
    if found.headers.get("content-type", "").startswith("text/event-stream"):
        lines = [line for line in found.text.splitlines() if line]
        assert all(line.startswith("data: ") for line in lines), lines
        parts = [line.removeprefix("data: ") for line in lines]
        answer["events"] = [part if part == "[DONE]" else json.loads(part) for part in parts]
    else:
        answer["answer"] = json.loads(found.text) if found.text else None
    return answer


def main(url: str) -> None:
    rows: list[dict[str, Any]] = []
    with httpx.Client(base_url=url, timeout=120) as client:
        texts = []
        for messages in asked.CONVERSATIONS[:3]:
            body = {"messages": messages, "temperature": 0, "max_tokens": 24}
            texts.append(client.post(asked.CHAT, json=body).json()["choices"][0]["message"]["content"])
        for path, body in asked.generated(36, texts):
            rows.append({"path": path, "body": body, **answered(client, "POST", path, json=body)})
        for method, path, headers, content in asked.RAW:
            sent = {"method": method, "path": path, "headers": headers, "content": content}
            rows.append({**sent, **answered(client, method, path, headers=headers, content=content)})
        models = client.get("/v1/models").json()
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    RECORDED.write_text(f'{{"models": {json.dumps(models)},\n"answers": [\n{lines}\n]}}\n', encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
