"""Secrets by the variables that hold them: what the environment says is not for everybody."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

MIN_LENGTH = 8  # a shorter value ("true", "1") would blot out ordinary words
_LINE_LENGTH = 20  # of a line of a secret that has several (a private key)
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
    """Values of variables whose name speaks of a token, key, secret or password, passwords inside URLs, and lines of longer ones.

    A name that may speak of something else too (``PROJECT_KEY``, ``AUTH_TYPE``) is believed when the value is no plain words, and under ``certain`` when it looks
    drawn at random. The path of a file that exists is none.
    """
    found: set[str] = set()
    for name, value in environ.items():
        if "://" in value:
            found |= _in_url(value)
        named = _NAME.search(name) and name not in _WORKING_FOLDERS
        sure = _CERTAIN.search(name) or (_RANDOM.fullmatch(value) if certain else not _WORDS_ONLY.fullmatch(value))
        if named and sure and not (value.startswith(("/", "~")) and os.path.exists(os.path.expanduser(value))):
            found.add(value)
            found |= {line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE_LENGTH}
    return tuple(sorted(value for value in found if len(value) >= MIN_LENGTH))


def without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a child that needs none of them."""
    secrets = secrets_in(environ)
    return {name: value for name, value in environ.items() if not any(secret in value for secret in secrets)}


def _in_url(text: str) -> set[str]:
    try:
        password = urlsplit(text).password
    except ValueError:
        return set()
    return {password, unquote(password)} if password else set()
