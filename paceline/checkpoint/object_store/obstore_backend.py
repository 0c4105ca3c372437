"""Object stores by URL, through obstore: S3 and compatible servers, Google's, Azure's, and folders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from paceline.checkpoint import codes
from paceline.checkpoint.object_store.interface import ObjectFacts, ReadBack, StoreRefused, StoreUnavailable
from paceline.config.registries.object_store_url import ObjectUrl
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError
from paceline.launch.environment.guide_variables import current
from paceline.plan.packages import missing_object_store

if TYPE_CHECKING:
    from obstore.auth.boto3 import Boto3CredentialProvider
    from obstore.store import ClientConfig, RetryConfig, S3Config
    from obstore.store import ObjectStore as Store

_MIB = 1024 * 1024
_PART_BYTES = 16 * _MIB
_MOST_PARTS = 9_000  # S3 allows 10,000
_AT_ONCE = 4  # parts of one file under way
_ENDPOINTS = frozenset({"AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"})
_AMAZON = re.compile(r"(.+\.)?amazonaws\.com(\.cn)?")
# Cloud machines answer with credentials here, where nothing else has any.
_METADATA = "169.254.169.254"
# Queries of presigned URLs hold signatures.
_QUERY = re.compile(r"\?[^\s\"']+")


def open_store(url: ObjectUrl, *, patient: bool = True) -> ObstoreStore:
    """Open the store of a URL; nothing is sent yet. Credentials are the store's own, found as its tools do.

    Without ``patient`` a request is given up after seconds, as before a start. Raises StoreRefused.
    """
    if missing := missing_object_store(str(url)):
        raise StoreRefused(missing)
    with _named(url, "the store cannot be opened"):
        return ObstoreStore(_opened(url, patient), url)


def _opened(url: ObjectUrl, patient: bool) -> Store:
    from obstore.store import AzureStore, GCSStore, LocalStore, S3Store, from_url

    if url.store == "file":
        return LocalStore(prefix=f"/{url.prefix}", mkdir=True)
    # an endpoint that the user has set to http:// is the user's choice; the default one is https
    client: ClientConfig = {
        "timeout": timedelta(seconds=120 if patient else 15),
        "connect_timeout": timedelta(seconds=10 if patient else 5),
        "allow_http": True,
    }
    retry: RetryConfig = {
        "max_retries": 6 if patient else 1,
        "retry_timeout": timedelta(seconds=180 if patient else 20),
        "backoff": {
            "init_backoff": timedelta(milliseconds=100),
            "max_backoff": timedelta(seconds=10),
            "base": 2,
        },
    }
    if url.store == "s3":
        # S3 compares the content with this hash, and refuses it if they differ; the call that removes many
        # objects at once is not spoken by every store that speaks S3
        config: S3Config = {"checksum_algorithm": "SHA256", "disable_bulk_delete": True}
        return S3Store(
            url.place,
            prefix=url.prefix,
            config=config,
            client_options=client,
            retry_config=retry,
            credential_provider=_aws_profile(),
        )
    if url.store == "gs":
        return GCSStore(url.place, prefix=url.prefix, client_options=client, retry_config=retry)
    if "@" in url.place:
        return from_url(str(url), client_options=client, retry_config=retry)
    return AzureStore(url.place, prefix=url.prefix, client_options=client, retry_config=retry)


def _aws_profile() -> Boto3CredentialProvider | None:
    """Return boto3's credentials (profiles, single sign-on) where boto3 is installed and finds some; else the
    store itself looks: variables, the machine's role.
    """
    if find_spec("boto3") is None:
        return None
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        return Boto3CredentialProvider()
    except ValueError:  # boto3 finds none
        return None


def _other_endpoint(environ: Mapping[str, str]) -> bool:
    """Whether S3's protocol is spoken with another server than Amazon's, which may ignore checksums."""
    set_here = [value for name, value in environ.items() if name in _ENDPOINTS and value]
    return not all(_AMAZON.fullmatch(urlsplit(value).hostname or "") for value in set_here)


class ObstoreStore:
    """An ``ObjectStore`` of obstore."""

    def __init__(self, store: Store, url: ObjectUrl) -> None:
        self._store, self._url = store, url

    @property
    def reads_back(self) -> ReadBack:
        if self._url.store != "s3":
            return ReadBack.ALL
        return ReadBack.SAMPLES if _other_endpoint(current()) else ReadBack.NOTHING

    def create(self, name: str, content: bytes) -> bool:
        from obstore.exceptions import AlreadyExistsError, NotSupportedError, PreconditionError

        with self._named(name, "the object could not be created"):
            try:
                self._store.put(name, content, mode="create")
            except (AlreadyExistsError, PreconditionError):
                return False
            except NotSupportedError as exc:
                raise StoreRefused(no_conditional_create(self._url, str(exc)[:200])) from None
        return True

    def put(self, name: str, content: bytes) -> None:
        with self._named(name, "the object could not be written"):
            self._store.put(name, content, use_multipart=False)

    def put_file(self, name: str, path: Path) -> None:
        size = path.stat().st_size
        # Larger parts for files that would need more than S3 takes.
        part = max(_PART_BYTES, -(-size // _MOST_PARTS // _MIB) * _MIB)
        with self._named(name, "the file could not be uploaded"):
            if size <= part:
                self._store.put(name, path.read_bytes(), use_multipart=False)
            else:
                self._store.put(name, path, chunk_size=part, max_concurrency=_AT_ONCE)

    def facts(self, name: str) -> ObjectFacts | None:
        with self._named(name, "the object could not be looked at"):
            try:
                head = self._store.head(name)
            except FileNotFoundError:
                return None
        return ObjectFacts(head["size"], head["last_modified"])

    def get(self, name: str) -> bytes | None:
        with self._named(name, "the object could not be read"):
            try:
                answer = self._store.get(name)
                content = bytes(answer.bytes())
            except FileNotFoundError:
                return None
        if len(content) != answer.meta["size"]:
            raise self._short(name, len(content), answer.meta["size"])
        return content

    def get_range(self, name: str, start: int, end: int) -> bytes:
        with self._named(name, "the object could not be read"):
            try:
                content = bytes(self._store.get_range(name, start=start, end=end))
            except FileNotFoundError:
                raise CheckpointError(
                    codes.OBJECTS_DAMAGED(
                        "an object of the checkpoint is not in the store",
                        f"{self._url}/{name}",
                        "removed, or never there",
                    )
                ) from None
        if len(content) != end - start:
            raise self._short(name, len(content), end - start)
        return content

    def delete(self, names: Sequence[str]) -> None:
        with self._named(names[0] if names else "", "objects could not be removed"):
            for name in names:
                with suppress(FileNotFoundError):
                    self._store.delete(name)

    def names(self, folder: str) -> list[str]:
        with self._named(folder, "the objects could not be listed"):
            return [entry["path"] for chunk in self._store.list(folder) for entry in chunk]

    def _named(self, name: str, failed: str) -> AbstractContextManager[None]:
        return _named(self._url, failed, name)

    def _short(self, name: str, arrived: int, expected: int) -> StoreUnavailable:
        return StoreUnavailable(
            codes.OBJECTS_UNAVAILABLE(
                "an object arrived short", f"{self._url}/{name}", f"{arrived} of {expected} bytes"
            )
        )


@contextmanager
def _named(url: ObjectUrl, what: str, name: str = "") -> Iterator[None]:
    """Turn the library's errors into those of ``interface``, without possible signatures in the text."""
    from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

    where = f"{url}/{name}" if name else str(url)
    try:
        yield
    except (PermissionDeniedError, UnauthenticatedError) as exc:
        raise StoreRefused(
            codes.OBJECTS_DENIED(
                what, where, _words(exc), "check the credentials of this process and what they may do"
            )
        ) from None
    except FileNotFoundError as exc:
        raise StoreRefused(
            codes.OBJECTS_DENIED(what, where, _words(exc), "check that the bucket exists")
        ) from None
    except (BaseError, OSError, ValueError) as exc:
        words = _words(exc)
        if _METADATA in words:  # the last place where credentials are looked for
            what, hint = (
                f"{what}: no credentials were found",
                "set those of the store, or start on its machines",
            )
            raise StoreRefused(codes.OBJECTS_DENIED(what, where, words, hint)) from None
        raise StoreUnavailable(
            codes.OBJECTS_UNAVAILABLE(
                what,
                where,
                words,
                "check the network, AWS_ENDPOINT_URL and AWS_REGION (or those of your store), and try again",
            )
        ) from None


def _words(error: BaseException) -> str:
    text = str(error).partition("Debug source")[0].strip() or type(error).__name__
    return _QUERY.sub("?…", " ".join(text.split()))[:300]


def no_conditional_create(url: ObjectUrl, answer: str) -> Diagnostic:
    """Return the diagnostic for a store that cannot commit checkpoints."""
    return codes.OBJECTS_NO_CONDITIONAL_CREATE(str(url), answer)
