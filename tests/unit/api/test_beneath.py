"""The rank that runs beneath a process of another launcher: its error, its attempt and its signals pass."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import pytest

from paceline.launch.supervision import child_rank

ROOT = Path(__file__).resolve().parents[3]


def _worker(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    monkeypatch.setattr(child_rank, "worker_argv", lambda *words: (sys.executable, "-c", program, *words))


def test_its_error_and_its_number_come_back(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pathlib import Path\n"
        "from paceline.api import codes\n"
        "from paceline.launch.supervision.worker_channel import LauncherConnection\n"
        "line = LauncherConnection.join(os.environ, 1, print)\n"
        "Path(sys.argv[1]).write_text(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "line.failed(3, codes.API_ROWS('lost', 'here'))\nsys.exit(3)\n"
    )
    _worker(monkeypatch, program)
    environ, attempts = {**os.environ, "PYTHONPATH": str(ROOT), "TORCHELASTIC_RESTART_COUNT": "2"}, []
    for number in range(2):
        code, finding = child_rank.run_beneath([str(tmp_path / str(number))], environ)
        assert code == 3 and finding is not None and (finding.code, finding.what) == ("api.rows", "lost")
        attempts.append(int((tmp_path / str(number)).read_text()))
    assert attempts[1] == attempts[0] + 1 and attempts[0] // 1000 == 2, "torchrun's own restarts stay apart"


def test_a_signal_is_passed_on_and_the_callers_handlers_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "import os, signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(75))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\nwhile True: time.sleep(0.05)\n"
    )
    _worker(monkeypatch, program)
    assert threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    assert child_rank.run_beneath([], os.environ) == (75, None)
    assert signal.getsignal(signal.SIGTERM) is before
