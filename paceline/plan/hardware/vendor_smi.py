"""Read the device lists of nvidia-smi and rocm-smi, without torch."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace

from paceline.plan.hardware.probe_results import ProbedDevice, SmiAnswer

SMI_SECONDS = 30  # without the persistence daemon each card's driver is started anew: seconds a card
MIB = 2**20
NVIDIA_FIELDS = "name,memory.total,memory.free,compute_cap,uuid,driver_version,mig.mode.current"
NVIDIA_QUERY = ("nvidia-smi", f"--query-gpu={NVIDIA_FIELDS}", "--format=csv,noheader,nounits")
# a driver before 510 knows neither capability nor MIG, and refuses a query with a field that it does not know
_FIRST_FIELDS = "name,memory.total,memory.free,uuid,driver_version"
NVIDIA_OLD_QUERY = ("nvidia-smi", f"--query-gpu={_FIRST_FIELDS}", "--format=csv,noheader,nounits")
_UNKNOWN_FIELD = "is not a valid field"
AMD_QUERY = ("rocm-smi", "--showproductname", "--showmeminfo", "vram", "--showuniqueid", "--json")
# nominal size → what a slice of it has at least: 1g.10gb of an A100 is 9,728 MiB
_SLICE_SHARE = 0.95
_CARD = re.compile(r"^GPU (\d+): (.*?) \(UUID: (GPU-[^)]+)\)")
_SLICE = re.compile(r"^\s+MIG (\S+?\.(\d+)gb\S*)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)")


def nvidia_smi() -> SmiAnswer | None:
    """Return nvidia-smi's devices, including MIG slices; None without the program."""
    text, failure = command_output(NVIDIA_QUERY)
    if _UNKNOWN_FIELD in failure:
        text, failure = command_output(NVIDIA_OLD_QUERY)
    if text is None and not failure:
        return None
    if failure:
        return SmiAnswer(failure=failure)
    answer = parse_nvidia(text or "")
    if any(card.mig for card in answer.devices):
        listed, _ = command_output(("nvidia-smi", "-L"))
        answer = replace(answer, devices=with_slices(answer.devices, listed or ""))
    return answer


def rocm_smi() -> SmiAnswer | None:
    """Return rocm-smi's devices; None without the program."""
    text, failure = command_output(AMD_QUERY)
    if text is None and not failure:
        return None
    return SmiAnswer(failure=failure) if failure else parse_amd(text or "")


def parse_nvidia(text: str) -> SmiAnswer:
    """Parse the answer to ``NVIDIA_QUERY``, or to ``NVIDIA_OLD_QUERY``: a line a card, in MiB; ``[N/A]`` for
    what it has not.
    """
    devices, driver = [], ""
    for line in text.splitlines():
        fields = [field.strip() for field in line.rsplit(",", 6)]
        if len(fields) < 7 or not fields[4].startswith("GPU-"):
            fields = [field.strip() for field in line.rsplit(",", 4)]
            if len(fields) < 5 or not fields[3].startswith("GPU-"):
                continue
            fields = [*fields[:3], "", *fields[3:], ""]
        name, total, free, capability, uuid, driver, mig = fields
        devices.append(
            ProbedDevice(name, _mib(total), _mib(free), _number(capability), uuid, mig=mig == "Enabled")
        )
    return SmiAnswer(tuple(devices), driver, "" if devices else (text.strip().splitlines() or ["no card"])[0])


def with_slices(cards: Sequence[ProbedDevice], listed: str) -> tuple[ProbedDevice, ...]:
    """Return ``cards``, each followed by its MIG slices, from the list of ``nvidia-smi -L``."""
    slices: dict[str, list[ProbedDevice]] = {}
    card = ProbedDevice("")
    for line in listed.splitlines():
        if match := _CARD.match(line):
            card = next((one for one in cards if one.uuid == match[3]), ProbedDevice(match[2], uuid=match[3]))
        elif match := _SLICE.match(line):
            part = ProbedDevice(
                f"{card.name} MIG {match[1]}",
                int(int(match[2]) * 2**30 * _SLICE_SHARE),
                None,
                card.capability,
                match[3],
                of=card.uuid,
            )
            slices.setdefault(card.uuid, []).append(part)
    return tuple(one for card in cards for one in (card, *slices.get(card.uuid, ())))


def parse_amd(text: str) -> SmiAnswer:
    """Parse rocm-smi's JSON; releases name the same thing differently."""
    try:
        listed, _ = json.JSONDecoder().raw_decode(text, text.index("{"))  # warnings stand around it
    except ValueError:
        return SmiAnswer(failure=(text.strip().splitlines() or ["no answer"])[0][:200])
    devices = []
    for card, values in sorted(listed.items(), key=lambda label: (len(label[0]), label[0])):
        if not card.startswith("card") or not isinstance(values, dict):
            continue
        by_name = {key.lower(): str(value) for key, value in values.items()}
        total = _number(by_name.get("vram total memory (b)", ""))
        names = [by_name.get(key, "") for key in ("card series", "card model", "device name")]
        name = next(
            (label for label in names if label and not label.startswith("0x") and label != "N/A"), "AMD GPU"
        )
        devices.append(
            ProbedDevice(
                name,
                int(total) if total else None,
                int(total - (_number(by_name.get("vram total used memory (b)", "")) or 0)) if total else None,
                uuid=by_name.get("unique id", ""),
                arch=by_name.get("gfx version", ""),
            )
        )
    return SmiAnswer(tuple(devices), failure="" if devices else "no card")


def command_output(command: Sequence[str]) -> tuple[str | None, str]:
    """Return (what the program printed, why it failed); (None, "") without such a program."""
    program = shutil.which(command[0])
    if program is None:
        return None, ""
    try:
        done = subprocess.run(
            [program, *command[1:]],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SMI_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None, f"{command[0]} gave no answer within {SMI_SECONDS} s"
    except OSError as exc:
        return None, f"{command[0]}: {exc.strerror or exc}"
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
        return None, f"{command[0]}: {lines[0][:200]}"
    return done.stdout, ""


def _mib(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number) * MIB


def _number(text: str) -> float | None:
    try:
        number = float(text)
    except ValueError:  # "[N/A]", "[Not Supported]"
        return None
    return number if math.isfinite(number) else None
