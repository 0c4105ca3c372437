"""Recognise secrets by their format, whatever the name of the key that holds them."""

from __future__ import annotations

import re

# What it is → its format. No format may match a path, a model name or a commit hash.
SHAPES: dict[str, str] = {
    "a Hugging Face token": r"(?:hf|api_org|hf_oauth)_[A-Za-z0-9]{30,}",
    "an API key of OpenAI's form": (
        r"sk-(?:(?:proj|ant|or|svcacct|admin|lf)-[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{32,})"
    ),
    "a GitHub token": r"gh[pousr]_[A-Za-z0-9]{36,}|github_pat_[A-Za-z0-9_]{22,}",
    "a GitLab token": r"gl(?:pat|ptt|dt|rt|cbt|soat)-[A-Za-z0-9_-]{20,}",
    "a Weights & Biases key": r"wandb_v1_[A-Za-z0-9_-]{20,}|local-[0-9a-f]{40}",
    "an AWS access key": r"(?:AKIA|ASIA|ABIA|ACCA)[A-Z0-9]{16}",
    "an Alibaba Cloud access key": r"LTAI[A-Za-z0-9]{12,24}",
    "a Tencent Cloud key": r"AKID[A-Za-z0-9]{32}",
    "a Google API key": r"AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,}",
    "a Slack token": r"xox[abposr]-[A-Za-z0-9-]{10,}",
    "an npm or PyPI token": r"npm_[A-Za-z0-9]{36}|pypi-AgE[A-Za-z0-9_-]{40,}",
    "an NVIDIA API key": r"nvapi-[A-Za-z0-9_-]{40,}",
    "a key of Groq, Replicate, Perplexity or xAI": r"(?:gsk_|r8_|pplx-|xai-)[A-Za-z0-9]{36,}",
    "a payment key": r"(?:sk|rk)_(?:live|test)_[A-Za-z0-9]{20,}",
    "a JSON web token": r"eyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}",
    "a private key": r"-----BEGIN [A-Z ]*PRIVATE KEY-----",
}
_ANY = re.compile("|".join(f"(?P<s{i}>{shape})" for i, shape in enumerate(SHAPES.values())))
#: Matches any of the formats, but not inside a longer word.
SHAPED = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(SHAPES.values())})")
_NAMES = tuple(SHAPES)
_BARE_KEY = re.compile(r"[0-9a-f]{40}")


def shape_of_secret(text: str) -> str | None:
    """Return which kind of secret ``text`` contains (a key of ``SHAPES``), or None."""
    found = SHAPED.search(text)
    if found is None:
        return None
    kind = _ANY.match(text, found.start())
    return _NAMES[int(str(kind.lastgroup)[1:])] if kind else None


def is_bare_key(text: str) -> bool:
    """Whether ``text`` is 40 hexadecimal digits: an older Weights & Biases key, or a commit.

    The name of its config key tells which.
    """
    return _BARE_KEY.fullmatch(text.strip()) is not None
