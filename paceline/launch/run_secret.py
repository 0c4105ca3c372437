"""The run's shared secret, which signs the messages of ranks (``runtime/process_group/signed_store.py``).

So someone who can only reach the port cannot impersonate a rank. The secret is in a file that only its owner
can read, or in a variable; never in an argument, a log or the store.
"""

from __future__ import annotations

import os
import secrets
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import ConfigError
from paceline.core.files import open_file
from paceline.launch import codes

FILE = "PACELINE_STORE_SECRET_FILE"
VALUE = "PACELINE_STORE_SECRET"
MIN_LENGTH = 16  # characters: a shorter one could be guessed from the codes made with it
_MAX_BYTES = 4096  # of the file that is read
_HINT = (
    f"set {FILE}=FILE on every node, the same {MIN_LENGTH} to {_MAX_BYTES} characters in each,"
    " chmod 600 (openssl rand -hex 32 > FILE)"
)


@contextmanager
def secret_environment(
    environ: Mapping[str, str], num_nodes: int, processes: int
) -> Iterator[dict[str, str]]:
    """Yield the variables by which this node's ranks find the secret, for the lifetime of the run.

    It is empty in three cases: the user has set a secret (children inherit it), the run is one process, or it
    has several nodes. Nodes cannot agree on a secret by themselves. Otherwise a new secret is written to a
    private file.
    """
    if is_set(environ) or num_nodes > 1 or processes == 1:
        yield {}
        return
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:  # mode 0700
        path = Path(folder) / "store-secret"
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "w") as file:
            file.write(secrets.token_hex(32))
        yield {FILE: str(path)}


def is_set(environ: Mapping[str, str]) -> bool:
    """Whether the user (or the launcher above) has set a secret."""
    return bool(environ.get(FILE) or environ.get(VALUE))


def read_secret(environ: Mapping[str, str]) -> bytes:
    """Return the secret, empty if none is set.

    Raises ConfigError (``launch.store_secret``) for an unusable one.
    """
    value, path = environ.get(VALUE, ""), environ.get(FILE, "")
    if value and path:
        both = f"{VALUE} and {FILE}"
        raise _refused("the store secret is given twice", both, f"set only one of {both}")
    secret = (_content(path) if path else value).strip()
    if is_set(environ) and len(secret) < MIN_LENGTH:
        raise _refused("the store secret is short enough to be guessed", f"{len(secret)} characters")
    return secret.encode("utf-8", "surrogateescape")


def unsigned(
    environ: Mapping[str, str], num_nodes: int, processes: int, *, ours: bool, allowed: bool
) -> Diagnostic | None:
    """Return the finding that messages between ranks are not signed; None if they are.

    It is an error on several nodes, whose port is open to others, and a warning if ``allowed``
    (``launch.allow_unsigned_store``) or on one. ``ours``: Paceline's own launcher starts the ranks.
    """
    if is_set(environ) or processes == 1 or (ours and num_nodes == 1):
        return None
    by_another = "the ranks are started by another program"
    why = "several nodes cannot agree on a secret by themselves" if ours else by_another
    risk = (
        "anyone who can reach the port where the ranks connect can end the run with forged"
        f" messages: {why}, and no secret is set"
    )
    severity, hint = Severity.WARNING, _HINT
    if num_nodes > 1 and not allowed:
        severity = Severity.ERROR
        hint = f"{_HINT}; in a network that you trust: launch.allow_unsigned_store: true"
    return codes.LAUNCH_STORE_UNSIGNED(risk, FILE, "not set", hint, severity)


def _content(path: str) -> str:
    try:
        with open_file(Path(path).expanduser()) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise _refused("the store secret is not a file", "a folder or a device")
            if info.st_mode & 0o007:
                mode = f"mode {stat.S_IMODE(info.st_mode):04o}"
                reason = "all users of this machine can read or change the store secret"
                raise _refused(reason, mode, "run chmod 600 on that file")
            return file.read(_MAX_BYTES).decode("utf-8", "surrogateescape")
    except OSError as exc:
        raise _refused(f"the store secret cannot be read: {exc.strerror or exc}", f"{FILE}={path}") from exc


def _refused(reason: str, value: str, hint: str = _HINT) -> ConfigError:
    return ConfigError(codes.LAUNCH_STORE_SECRET(reason, FILE, value, hint))
