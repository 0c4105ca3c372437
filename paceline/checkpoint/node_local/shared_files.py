"""The files that each node gives to the others: where it gives them, and of which checkpoint. No torch."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from pathlib import Path
from typing import BinaryIO

from paceline.checkpoint.collective import CheckpointWorld, together
from paceline.checkpoint.format.durable_files import named_errors
from paceline.checkpoint.format.manifest import MANIFEST
from paceline.checkpoint.format.verify_files import open_part, read_manifest
from paceline.checkpoint.node_local.download import Holder
from paceline.checkpoint.node_local.file_server import FileServer, key_of

_WHAT = "this node cannot give its files to the others"


class FilesGiven:
    """What this disk's leader gives, and the places and the key of all leaders.

    ``address`` gives that of this machine towards a host, or where none is named towards the host at which
    all ranks met; ``secret``: the run's.
    """

    def __init__(
        self, ranks: CheckpointWorld, leads: bool, address: Callable[[str], str], secret: bytes
    ) -> None:
        self._ranks, self._leads = ranks, leads
        self._address, self._secret = address, secret
        self._server: FileServer | None = None
        self._folders: dict[str, Path] = {}  # manifest's digest → folder here, whose files are given
        self._places: dict[int, Holder] = {}
        self.key = b""

    @property
    def places(self) -> Mapping[int, Holder]:
        """By the disk's leader, where it gives its files; empty before ``open``."""
        return self._places

    def give(self, digest: str, folder: Path) -> None:
        """Give the files of this checkpoint's folder from here on."""
        self._folders[digest] = folder

    def open(self, folder: Path) -> None:
        """Let each leader give its disk's files; all learn where, and the key. Collective."""
        if self._places:
            return
        first = self._ranks.rank == 0
        tokens = together(self._ranks, lambda: secrets.token_hex(32) if first else "", folder, _WHAT)
        self.key = key_of(self._secret, tokens[0])

        def own(towards: str = "") -> str:
            with named_errors(folder, _WHAT):
                return self._address(towards)

        addresses = together(self._ranks, lambda: own() if self._leads else "", folder, _WHAT)
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

        for rank, answers in enumerate(together(self._ranks, listen, folder, _WHAT)):
            if answers is not None:
                host, address, port = answers
                self._places[rank] = Holder(rank, host, (address, port))

    def close(self) -> None:
        """Give no more files. Not collective; all ranks have read what they need."""
        if self._server is not None:
            self._server.close()

    def _open_file(self, digest: str, name: str) -> tuple[BinaryIO, int]:
        """Open a file that another node asks for: one of the manifest's, or the manifest."""
        path = self._folders[digest]
        if name != MANIFEST and name not in read_manifest(path).files:
            raise KeyError(name)
        file = open_part(path, name)
        return file, os.fstat(file.fileno()).st_size


def _is_loopback(address: str) -> bool:
    return ip_address(address).is_loopback
