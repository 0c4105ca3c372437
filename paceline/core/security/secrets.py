"""Recognise secrets by their format, and by the name of an environment variable."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

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
# Named groups tell which of the formats has matched
_ANY = re.compile("|".join(f"(?P<s{i}>{shape})" for i, shape in enumerate(SHAPES.values())))
#: Matches any of the formats, but not inside a longer word.
SHAPED = re.compile(rf"(?<![A-Za-z0-9_])(?:{'|'.join(SHAPES.values())})")
_NAMES = tuple(SHAPES)
_BARE_KEY = re.compile(r"[0-9a-f]{40}")


def shape_of_secret(text: str) -> str | None:
    """Return which kind of secret ``text`` contains (a key of ``SHAPES``), or None."""
    match = SHAPED.search(text)
    if match is None:
        return None
    kind = _ANY.match(text, match.start())
    return _NAMES[int(str(kind.lastgroup)[1:])] if kind else None


def is_bare_key(text: str) -> bool:
    """Whether ``text`` is 40 hexadecimal digits: an older Weights & Biases key, or a commit.

    The name of its config key tells which.
    """
    return _BARE_KEY.fullmatch(text.strip()) is not None


MIN_LENGTH = 8  # redacting shorter values ("true", "1") would hide ordinary words
_LINE_LENGTH = 20  # shortest line that is redacted by itself in a multi-line secret (a private key)
_WORDS = (
    r"TOKEN|KEY|SECRET|PASS|PASSWORD|PASSWD|PASSPHRASE|PWD|CREDENTIAL|CREDENTIALS"
    r"|AUTH|AUTHORIZATION|BEARER|PAT|DSN|COOKIE"
)
_NAME = re.compile(
    rf"(?i)(?:^|[_.-])(?:{_WORDS})S?(?:[_.-]|\d*$)|PASSWORD|PASSWD|SECRET|API_?KEY|CREDENTIAL|TOKEN(?!I[ZS])"
)
_CERTAIN = re.compile(
    r"(?i)(?:TOKEN|API_?KEY|ACCESS_?KEY(?:_ID)?|SECRET(?:_KEY)?|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?"
    r"|_PASS|_PWD|_PAT)(?:_?\d+)?$"
)
_WORDS_ONLY = re.compile(r"[a-z]+(?:[-_. ][a-z]+)*")  # PROJECT_KEY=alpha-team, AUTH_TYPE=password
_RANDOM = re.compile(r"(?=.*[0-9])(?=.*[A-Za-z])[^\s/]{12,}")
# PWD ends like a password's name
_WORKING_FOLDERS = ("PWD", "OLDPWD")


def secrets_in(environ: Mapping[str, str], *, certain: bool = False) -> tuple[str, ...]:
    """Return the secret values in ``environ``, sorted.

    These are values of variables named like a token, key, secret or password, the lines of multi-line ones,
    and passwords inside URLs. Under an ambiguous name (``PROJECT_KEY``, ``AUTH_TYPE``) a value counts unless
    it is plain words; with ``certain`` only if it looks random. The path of an existing file is no secret.
    """
    secrets: set[str] = set()
    for name, value in environ.items():
        if "://" in value:
            secrets |= _in_url(value)
        # Both the name and the value must look like a secret's
        has_secret_name = _NAME.search(name) and name not in _WORKING_FOLDERS
        sure = _CERTAIN.search(name) or (
            _RANDOM.fullmatch(value) if certain else not _WORDS_ONLY.fullmatch(value)
        )
        if (
            has_secret_name
            and sure
            and not (value.startswith(("/", "~")) and os.path.exists(os.path.expanduser(value)))
        ):
            secrets.add(value)
            secrets |= {line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE_LENGTH}
    return tuple(sorted(value for value in secrets if len(value) >= MIN_LENGTH))


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """Return ``environ`` without the variables that contain a secret, for a child process that needs none."""
    secrets = secrets_in(environ)
    return {name: value for name, value in environ.items() if not any(secret in value for secret in secrets)}


def _in_url(text: str) -> set[str]:
    try:
        password = urlsplit(text).password
    except ValueError:
        return set()
    return {password, unquote(password)} if password else set()
