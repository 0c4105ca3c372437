"""Nodes send each other a checkpoint's files; both sides prove that they have the run's key. No torch.

One request a connection. A file's bytes are signed but not encrypted; the manifest's hashes show whether they
are the saved ones. A fetched file is streamed, compared with the manifest, then renamed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import BinaryIO

from paceline.checkpoint import codes
from paceline.checkpoint.collective import CheckpointWorld, on_all_ranks
from paceline.checkpoint.errors import damaged
from paceline.checkpoint.format.durable_files import named_errors, need_space, sync_folder, write_fresh
from paceline.checkpoint.format.manifest import MANIFEST, MAX_MANIFEST_BYTES, Manifest
from paceline.checkpoint.format.verify_files import open_part, read_manifest, wrong_block
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import CheckpointError, PacelineError

Place = tuple[str, int]  # address and port
Opened = Callable[[str, str], tuple[BinaryIO, int]]  # (manifest's digest, name of a file) → open file, bytes

_NONCE, _PROOF, _LENGTH = 32, 32, 8  # bytes
_MOST_REQUEST = 4096
_SECONDS = 60.0  # without a byte: a disk that wakes up may take long
_PIECE = 8 * 1024 * 1024
# Each holds a piece of 8 MiB; more nodes wait for their turn in the backlog.
_AT_ONCE = 16  # connections


@dataclass(frozen=True)
class PeerNode:
    """A node that has files: its leader's rank and host, and the address of its server."""

    rank: int
    host: str
    place: Place

    def __str__(self) -> str:
        return f"{self.host} (rank {self.rank})"


class RefusedError(Exception):
    """The other side has another key, or does not send the file."""


def key_of(secret: bytes, token: str) -> bytes:
    """Return the key of one resume, from the run's secret and a token that rank 0 sent to all ranks."""
    return hmac.new(secret, b"paceline/files/" + token.encode(), hashlib.sha256).digest()


class FileServer:
    """Sends files to clients that have the key, at one address of this machine, from separate threads.

    ``opened`` opens a file, and raises KeyError, OSError or PacelineError for a file that it refuses.
    """

    def __init__(self, address: str, key: bytes, opened: Opened) -> None:
        self._key, self._opened = key, opened
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family, backlog=4096)
        self.place: Place = (address, int(self._listener.getsockname()[1]))
        self._room = threading.Semaphore(_AT_ONCE)
        threading.Thread(target=self._accept, name="paceline-files", daemon=True).start()

    def close(self) -> None:
        """Stop accepting requests. Safe to call twice."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            # Before ``accept``: connections beyond the limit wait in the kernel's backlog, and hold no
            # memory here.
            self._room.acquire()
            try:
                line, _ = self._listener.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(line,), name="paceline-file", daemon=True).start()

    def _serve(self, line: socket.socket) -> None:
        try:
            with line, contextlib.suppress(OSError, ValueError, KeyError, PacelineError):
                line.settimeout(_SECONDS)
                # Each side contributes a nonce, so that neither can be made to sign an old exchange.
                mine = secrets.token_bytes(_NONCE)
                line.sendall(mine)
                theirs, proof = _exactly(line, _NONCE), _exactly(line, _PROOF)
                length = int.from_bytes(_exactly(line, _LENGTH), "big")
                # Before reading: an unknown peer must not make us allocate.
                if length > _MOST_REQUEST:
                    return
                request = _exactly(line, length)
                # The proof holds both nonces: an overheard request cannot be sent again.
                if not hmac.compare_digest(proof, _proof(self._key, b"ask", mine, theirs, request)):
                    return
                wanted = json.loads(request)
                file, size = self._opened(str(wanted["digest"]), str(wanted["name"]))
                with file:
                    count = size.to_bytes(_LENGTH, "big")
                    # The purpose (``ask``, ``give``) is signed, so that a request cannot be sent back as an
                    # answer.
                    line.sendall(_proof(self._key, b"give", mine, theirs, count) + count)
                    signature = sign_pair(self._key, mine, theirs)
                    while piece := file.read(_PIECE):
                        signature.update(piece)
                        line.sendall(piece)
                    line.sendall(signature.digest())
        finally:
            self._room.release()


@contextlib.contextmanager
def requested_file(
    address: Place, key: bytes, digest: str, name: str
) -> Iterator[tuple[int, Iterator[memoryview]]]:
    """Yield the size of a file at ``address``, and its bytes piece by piece, each in separate memory.

    Raises RefusedError, and OSError where the connection fails or ends early.
    """
    with socket.create_connection(address, timeout=_SECONDS) as line:
        theirs, mine = _exactly(line, _NONCE), secrets.token_bytes(_NONCE)
        request = json.dumps(_request(digest, name)).encode()
        head = len(request).to_bytes(_LENGTH, "big")
        line.sendall(mine + _proof(key, b"ask", theirs, mine, request) + head + request)
        try:
            proof, count = _exactly(line, _PROOF), _exactly(line, _LENGTH)
        except ConnectionError:
            # A server that refuses hangs up without a word; it tells a stranger nothing.
            raise RefusedError("it has another secret, or does not have the file any more") from None
        if not hmac.compare_digest(proof, _proof(key, b"give", theirs, mine, count)):
            raise RefusedError("its answer is not signed with the run's secret")
        size = int.from_bytes(count, "big")
        yield size, _pieces(line, size, sign_pair(key, theirs, mine))


def _request(digest: str, name: str) -> Mapping[str, str]:
    return {"digest": digest, "name": name}


def sign_pair(key: bytes, first: bytes, second: bytes) -> hmac.HMAC:
    """Start a file's signature, which protects against forged bytes where block hashes do not."""
    return hmac.new(key, b"bytes" + first + second, hashlib.sha256)


def _pieces(line: socket.socket, size: int, signature: hmac.HMAC) -> Iterator[memoryview]:
    left = size
    while left:
        piece = memoryview(bytearray(min(_PIECE, left)))
        _fill(line, piece)
        left -= len(piece)
        signature.update(piece)
        yield piece
    if not hmac.compare_digest(_exactly(line, _PROOF), signature.digest()):
        raise RefusedError("its bytes are not signed with the run's secret")


def _proof(key: bytes, purpose: bytes, first: bytes, second: bytes, text: bytes) -> bytes:
    return hmac.new(key, purpose + first + second + text, hashlib.sha256).digest()


def _exactly(line: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    _fill(line, memoryview(data))
    return bytes(data)


def _fill(line: socket.socket, view: memoryview) -> None:
    while view:
        got = line.recv_into(view)
        if not got:
            raise ConnectionError("the other side hung up")
        view = view[got:]


_WHAT = "this node cannot give its files to the others"


class SharedFiles:
    """The files that this disk's leader sends, and the addresses and key of all leaders.

    ``address`` returns this machine's address towards a host, by default the host at which all ranks met;
    ``secret``: the run's.
    """

    def __init__(
        self, ranks: CheckpointWorld, leads: bool, address: Callable[[str], str], secret: bytes
    ) -> None:
        self._ranks, self._leads = ranks, leads
        self._address, self._secret = address, secret
        self._server: FileServer | None = None
        self._folders: dict[str, Path] = {}  # manifest's digest → folder here, whose files are given
        self._places: dict[int, PeerNode] = {}
        self.key = b""

    @property
    def places(self) -> Mapping[int, PeerNode]:
        """Disk leader → address of its server; empty before ``open``."""
        return self._places

    def give(self, digest: str, folder: Path) -> None:
        """Send the files of this checkpoint's folder from now on."""
        self._folders[digest] = folder

    def open(self, folder: Path) -> None:
        """Start each leader's server, and send all ranks its address and the key. Collective."""
        if self._places:
            return
        first = self._ranks.rank == 0
        tokens = on_all_ranks(self._ranks, lambda: secrets.token_hex(32) if first else "", folder, _WHAT)
        self.key = key_of(self._secret, tokens[0])

        def own(towards: str = "") -> str:
            with named_errors(folder, _WHAT):
                return self._address(towards)

        addresses = on_all_ranks(self._ranks, lambda: own() if self._leads else "", folder, _WHAT)
        # A leader whose own name resolves to 127.0.0.1 would be out of reach for the others.
        reached = [address for address in addresses if address and not _is_loopback(address)]

        def listen() -> tuple[str, str, int] | None:
            if not self._leads:
                return None
            address = addresses[self._ranks.rank]
            if reached and _is_loopback(address):  # this host's own name is that of the meeting place
                address = own(reached[0])
            with named_errors(folder, _WHAT):
                self._server = FileServer(address, self.key, self._open_file)
            return socket.gethostname(), *self._server.place

        for rank, answers in enumerate(on_all_ranks(self._ranks, listen, folder, _WHAT)):
            if answers is not None:
                host, address, port = answers
                self._places[rank] = PeerNode(rank, host, (address, port))

    def close(self) -> None:
        """Stop sending files. Not collective; all ranks must have finished reading."""
        if self._server is not None:
            self._server.close()

    def _open_file(self, digest: str, name: str) -> tuple[BinaryIO, int]:
        """Open a file that another node requests: one in the manifest, or the manifest."""
        path = self._folders[digest]
        # Only what the manifest lists: a name such as ../../key is never opened.
        if name != MANIFEST and name not in read_manifest(path).files:
            raise KeyError(name)
        file = open_part(path, name)
        return file, os.fstat(file.fileno()).st_size


def _is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback


_STAGED = ".fetched-"
_CANNOT = "a file of the checkpoint cannot be brought from another node"


@dataclass(frozen=True)
class _Refusal:
    """Why a node's file was refused; ``damaged``: its bytes differ from the saved ones."""

    holder: PeerNode
    reason: str
    damaged: bool


def fetch_manifest(folder: Path, digest: str, holders: Sequence[PeerNode], key: bytes) -> None:
    """Fetch the manifest into ``folder``. Raises CheckpointError."""

    def bring(staged: Path, holder: PeerNode) -> str:
        with requested_file(holder.place, key, digest, MANIFEST) as (size, pieces):
            if size > MAX_MANIFEST_BYTES:
                raise RefusedError(f"its manifest has {size} bytes")
            with named_errors(folder, _CANNOT):
                written = write_fresh(staged, _received(pieces))
        return "" if written.sha256 == digest else "it is another manifest"

    _from_one_of(holders, folder, MANIFEST, bring)


def fetch_file(
    checkpoint: Path, manifest: Manifest, name: str, digest: str, holders: Sequence[PeerNode], key: bytes
) -> list[Diagnostic]:
    """Fetch one file from the first of ``holders`` whose bytes have the manifest's hashes; return warnings
    about the others. One rank of a node fetches it, the others wait.

    Raises CheckpointError: ``checkpoint.damaged`` where each holder's bytes are wrong,
    ``checkpoint.not_fetched`` where one did not answer, ``checkpoint.disk_full``.
    """
    entry = manifest.files[name]

    def bring(staged: Path, holder: PeerNode) -> str:
        with requested_file(holder.place, key, digest, name) as (size, pieces):
            if size != entry.bytes:
                raise RefusedError(f"its file has {size} bytes instead of {entry.bytes}")
            with named_errors(staged.parent, _CANNOT):
                grain = manifest.grain if entry.blocks else None
                written = write_fresh(staged, _received(pieces), grain=grain)
        if not entry.blocks:
            return "" if written.sha256 == entry.sha256 else f"sha256 {written.sha256[:12]}…"
        pairs = enumerate(zip(written.blocks, entry.blocks, strict=True))
        block, wrong = next(((block, theirs) for block, (theirs, ours) in pairs if theirs != ours), (0, ""))
        return wrong and wrong_block(entry, block, manifest.grain, wrong)

    with _alone(checkpoint, name):
        if (checkpoint / name).exists():
            return []
        need_space(checkpoint, entry.bytes)
        (checkpoint / name).parent.mkdir(parents=True, exist_ok=True)
        refusals = _from_one_of(holders, checkpoint, name, bring)
    return [
        codes.CHECKPOINT_HOLDER_DAMAGED(str(checkpoint), refusal.reason, holder=refusal.holder, name=name)
        for refusal in refusals
        if refusal.damaged
    ]


def _from_one_of(
    holders: Sequence[PeerNode], checkpoint: Path, name: str, bring: Callable[[Path, PeerNode], str]
) -> list[_Refusal]:
    """Publish the file from the first of ``holders`` with correct bytes; return why earlier holders failed.

    ``bring`` writes a holder's bytes and returns the difference, or nothing. Raises
    CheckpointError.
    """
    refusals: list[_Refusal] = []
    for holder in holders:
        staged = checkpoint / f"{_STAGED}{_flat(name)}-{os.urandom(4).hex()}"
        try:
            wrong = bring(staged, holder)
            if not wrong:
                with named_errors(checkpoint, _CANNOT):
                    # Verified first: under its own name a file is always whole.
                    os.rename(staged, checkpoint / name)
                    sync_folder((checkpoint / name).parent)
                return refusals
            refusals.append(_Refusal(holder, wrong, True))
        except (RefusedError, OSError) as exc:
            refusals.append(_Refusal(holder, _words(exc), False))
        finally:
            staged.unlink(missing_ok=True)
    reasons = "; ".join(f"{refusal.holder}: {refusal.reason}" for refusal in refusals)
    if refusals and all(refusal.damaged for refusal in refusals):
        raise damaged(checkpoint, name, reasons)
    raise CheckpointError(
        codes.CHECKPOINT_NOT_FETCHED(str(checkpoint), reasons or "no node has it", name=name)
    )


def remove_unfinished(checkpoint: Path) -> None:
    """Remove leftovers of interrupted fetches from a checkpoint's folder."""
    for left in checkpoint.glob(f"{_STAGED}*"):
        left.unlink(missing_ok=True)


def _received(pieces: Iterator[memoryview]) -> Iterator[memoryview]:
    """Yield the pieces; keep connection errors apart from errors of this disk."""
    try:
        yield from pieces
    except OSError as exc:
        raise RefusedError(_words(exc)) from exc


@contextmanager
def _alone(checkpoint: Path, name: str) -> Iterator[None]:
    """Let only one process of this machine at a time fetch the file."""
    path = checkpoint / f"{_STAGED}{_flat(name)}.lock"
    with named_errors(checkpoint, _CANNOT):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        # Ranks of one node ask for the same side files at once.
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def _flat(name: str) -> str:
    return name.replace("/", "-")


def _words(exc: Exception) -> str:
    return (str(exc) or type(exc).__name__).splitlines()[0][:200]
