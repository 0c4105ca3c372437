"""Find secrets in environment variables by the variables' names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

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
_WORKING_FOLDERS = ("PWD", "OLDPWD")


def secrets_in(environ: Mapping[str, str], *, certain: bool = False) -> tuple[str, ...]:
    """Return the secret values in ``environ``, sorted.

    These are values of variables named like a token, key, secret or password, the lines of multi-line ones,
    and passwords inside URLs. Under an ambiguous name (``PROJECT_KEY``, ``AUTH_TYPE``) a value counts unless
    it is plain words; with ``certain`` only if it looks random. The path of an existing file is no secret.
    """
    found: set[str] = set()
    for name, value in environ.items():
        if "://" in value:
            found |= _in_url(value)
        # Both the name and the value must look like a secret's
        named = _NAME.search(name) and name not in _WORKING_FOLDERS
        sure = _CERTAIN.search(name) or (
            _RANDOM.fullmatch(value) if certain else not _WORDS_ONLY.fullmatch(value)
        )
        if (
            named
            and sure
            and not (value.startswith(("/", "~")) and os.path.exists(os.path.expanduser(value)))
        ):
            found.add(value)
            found |= {line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE_LENGTH}
    return tuple(sorted(value for value in found if len(value) >= MIN_LENGTH))


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
