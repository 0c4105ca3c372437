"""Find config values that contain a secret from the environment; every file of the run would hold them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.config import codes
from paceline.config.source import Source
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import Json
from paceline.core.security.secret_values import secrets_in


def held_secrets(
    config: Mapping[str, Json], provenance: Mapping[str, Source], environ: Mapping[str, str]
) -> Iterator[Diagnostic]:
    """Report each config value (JSON) that contains the value of a variable named like a secret."""
    secrets = secrets_in(environ, certain=True)
    for path, text in _leaves("", config) if secrets else ():
        for secret in secrets:
            if secret in text:
                source = next((provenance[p] for p in _upwards(path) if p in provenance), None)
                yield codes.SEC_SECRET_VALUE(
                    (source.place() if source else path).split("=")[0],
                    "*** (not shown)",
                    path=path,
                    names=" or ".join(f"${name}" for name, value in environ.items() if secret in value),
                )
                break


def _leaves(path: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(f"{path}.{key}".lstrip("."), item)
            yield path, str(key)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _leaves(path, item)
    elif isinstance(value, str):
        yield path, value


def _upwards(path: str) -> Iterator[str]:
    while path:
        yield path
        path = path.rpartition(".")[0]
