"""URLs of object storage, as ``training.checkpoint_url`` and ``resume_from_checkpoint`` take them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

#: Spellings (those of fsspec) → the store that is meant. Each has a create that is refused where the object
#: exists, and whose object appears whole or not at all.
STORES = {
    "s3": "s3",
    "s3a": "s3",
    "gs": "gs",
    "gcs": "gs",
    "az": "az",
    "abfs": "az",
    "abfss": "az",
    "file": "file",
}
PACKAGE, EXTRA = "obstore", "paceline[objects]"
_STEP = re.compile(r"step-\d{8,15}")
_PART = re.compile(r"[A-Za-z0-9._=+@,-]+")


@dataclass(frozen=True)
class ObjectUrl:
    """``place`` is a bucket (or ``container@account…``), empty for files; ``step``: the one checkpoint that
    is meant, None for the newest.
    """

    scheme: str
    place: str
    prefix: str
    step: str | None = None

    @property
    def store(self) -> str:
        return STORES[self.scheme]

    @property
    def folder_name(self) -> str:
        """A folder name unique to this URL."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:16]

    def __str__(self) -> str:
        """The URL without the step."""
        return f"{self.scheme}://{self.place}/{self.prefix}"


def is_url(text: str | None) -> bool:
    """Whether the text is meant as a URL, not as a path or a word."""
    return text is not None and "://" in text


def parse_url(text: str) -> ObjectUrl:
    """Return the parts of a URL. Raises ValueError with what is wrong, without any credentials."""
    scheme, _, rest = text.strip().partition("://")
    scheme = scheme.lower()
    if scheme not in STORES:
        raise ValueError(
            f"{scheme}:// has no conditional create that Paceline could commit a checkpoint by;"
            f" these have: {', '.join(f'{name}://' for name in STORES)}"
        )
    # The scheme is checked by now: x:// has urlsplit cut the rest alike for all
    split = urlsplit(f"x://{rest}")
    user, credentials, _ = split.netloc.rpartition("@")
    if credentials and (":" in user or STORES[scheme] != "az"):
        raise ValueError("a URL holds no user name and no password: give them in your store's own variables")
    if split.query or split.fragment:
        raise ValueError("a URL holds no ?query and no #fragment (a signature would be a secret)")
    parts = [part for part in split.path.split("/") if part]
    if wrong := [part for part in parts if part in (".", "..") or not _PART.fullmatch(part)]:
        raise ValueError(f"{wrong[0][:60]!r} is no plain name: letters, digits and . _ = + @ , -")
    step = parts.pop() if parts and _STEP.fullmatch(parts[-1]) else None
    if STORES[scheme] == "file":
        if split.netloc:
            raise ValueError("write file:///folder with three slashes: there is no host")
    elif not split.netloc:
        raise ValueError(f"no bucket is named: {scheme}://BUCKET/folder")
    if not parts:
        raise ValueError("name a folder of the run below the bucket: no other run may write there")
    return ObjectUrl(scheme, split.netloc, "/".join(parts), step)
