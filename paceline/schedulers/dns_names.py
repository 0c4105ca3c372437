"""Names that Kubernetes, SkyPilot and dstack take: labels of RFC 1035, short enough for what is appended."""

from __future__ import annotations

import hashlib
import re

#: JobSet and Job append ``-servers-0-99999-abcde`` to it, and a pod's name has 63 characters at most
LONGEST = 40
_DIGEST = 6


def dns_name(text: str) -> str:
    """Return ``text`` where it is such a name, else a name like it that ends with a digest of it."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    if not plain[:1].isalpha():
        plain = f"run-{plain}".strip("-")
    if plain == text and len(text) <= LONGEST:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogateescape"), digest_size=_DIGEST // 2).hexdigest()
    return f"{plain[: LONGEST - _DIGEST - 1].strip('-')}-{digest}"
