"""``paceline launch --init``: a site's ``launch:`` keys, from questions that the machine helps to answer."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from paceline.cli import codes
from paceline.config.migrations import KEY, newest
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError, PacelineError
from paceline.plan.hardware.device_catalogue import card_named
from paceline.schedulers.control import answer_of

_SECTION = "launch"


@dataclass(frozen=True)
class SiteQuestion:
    """A key below ``launch:``, its question and the answer that the machine suggests ("": none).

    ``is_needed``: without an answer nothing is written.
    """

    key: str
    text: str
    suggested: str = ""
    is_needed: bool = False


@dataclass(frozen=True)
class Partition:
    """A partition of Slurm: its accelerators by node, and their name as the site spells it."""

    name: str
    gpus: int
    gpu: str
    is_default: bool


def write_site(to: Path, scheduler: str, given: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Write a YAML with the site's keys, to be named in a config's ``extends``.

    ``given``: answers by key. Without a terminal suggestions apply. Raises ConfigError with all keys that
    have none.
    """
    if to.exists():
        raise ConfigError(codes.CLI_OPTION("the file exists already", str(to), str(to), "name another file"))
    questions = questions_of(scheduler, environ)
    by_key = {f"{_SECTION}.{question.key}": question for question in questions}
    problems = [
        codes.CLI_OPTION("init has no such question", "KEY=VALUE", key, f"one of: {', '.join(by_key)}")
        for key in given
        if key not in by_key
    ]
    typed = sys.stdin is not None and sys.stdin.isatty()
    answers: dict[str, str] = {}
    for key, question in by_key.items():
        answer = given.get(key, "") or (_typed(question) if typed and not problems else question.suggested)
        if answer:
            answers[question.key] = answer
        elif question.is_needed:
            problems.append(_unanswered(key, question))
    if problems:
        raise ConfigError(*problems)
    to.write_text(_yaml(answers), encoding="utf-8")


def questions_of(scheduler: str, environ: Mapping[str, str]) -> list[SiteQuestion]:
    """Return the questions for a scheduler, with what its commands suggest."""
    gpus = SiteQuestion("gpus_per_node", "Accelerators of a node; 0: none")
    if scheduler == "slurm":
        found = partitions(_suggestion(("sinfo", "--noheader", "--format=%P|%G"), environ))
        default = next((p for p in found if p.is_default), found[0] if found else Partition("", 0, "", True))
        names = f" ({', '.join(p.name for p in found)})" if found else ""
        return [
            SiteQuestion("partition", f"Partition{names}", default.name),
            SiteQuestion("account", "Account"),
            SiteQuestion("qos", "Quality of service"),
            SiteQuestion(gpus.key, gpus.text, str(default.gpus) if found else "", is_needed=True),
            SiteQuestion("gpu", "Their name, to plan memory and time", _card(default.gpu)),
            SiteQuestion("interface", "Network interface between the nodes", _fastest_interface()),
        ]
    if scheduler == "kubernetes":
        space = _suggestion(
            ("kubectl", "config", "view", "--minify", "-o", "jsonpath={..namespace}"), environ
        )
        path = r"jsonpath={.items[*].status.allocatable.nvidia\.com/gpu}"
        counts = re.findall(r"\d+", _suggestion(("kubectl", "get", "nodes", "-o", path), environ))
        return [
            SiteQuestion("image", "Image with Paceline", is_needed=True),
            SiteQuestion("kubernetes.namespace", "Namespace", space.strip()),
            SiteQuestion(gpus.key, gpus.text, max(counts, key=int, default=""), is_needed=True),
            SiteQuestion("gpu", "Their name, to plan memory and time"),
        ]
    hosts = (
        [SiteQuestion("hostfile", "File of hosts, NAME slots=PROCESSES")]
        if scheduler in ("ssh", "mpi")
        else []
    )
    return [*hosts, SiteQuestion(gpus.key, gpus.text, is_needed=True)]


def partitions(shown: str) -> list[Partition]:
    """Return the partitions of ``sinfo --format=%P|%G``: ``gpu*|gpu:h100:8(S:0-1)``."""
    found: dict[str, Partition] = {}
    for line in shown.splitlines():
        name, _, resources = line.strip().partition("|")
        match = re.search(r"gpu:(?:([A-Za-z][\w.-]*):)?(\d+)", resources)
        gpus, gpu = (int(match[2]), match[1] or "") if match else (0, "")
        before = found.get(name)
        if name and (before is None or before.gpus < gpus):
            found[name] = Partition(name.rstrip("*"), gpus, gpu, name.endswith("*"))
    return list(found.values())


def scheduler_here(environ: Mapping[str, str]) -> str:
    """Return the scheduler whose commands this machine has; ``local`` where it has none."""
    programs = {"slurm": "sinfo", "kubernetes": "kubectl"}
    return next((n for n, p in programs.items() if shutil.which(p, path=environ.get("PATH"))), "local")


def _suggestion(argv: tuple[str, ...], environ: Mapping[str, str]) -> str:
    """Return what a command prints; empty where it is not there or fails, since it only suggests."""
    try:
        return answer_of(argv, environ)
    except PacelineError as error:
        typer.echo(f"nothing is suggested: {error.diagnostics[0].what}", err=True)
        return ""


def _card(name: str) -> str:
    """Return the catalogue's name of an accelerator as a site spells it; empty if it is none."""
    try:
        return card_named(name).name if name else ""
    except ConfigError:
        return ""


def _fastest_interface() -> str:
    """Return an InfiniBand interface of this machine, if it has one: nodes mostly are alike."""
    devices = Path("/sys/class/net")
    return next((path.name for path in sorted(devices.glob("ib*"))), "") if devices.is_dir() else ""


def _typed(question: SiteQuestion) -> str:
    # An empty answer leaves the key out
    return str(typer.prompt(question.text, default=question.suggested, err=True)).strip()


def _unanswered(key: str, question: SiteQuestion) -> Diagnostic:
    message = f"no answer, and nothing suggests one: {question.text}"
    return codes.CLI_OPTION(message, "launch --init", "", f"{key}=…")


def _yaml(answers: Mapping[str, str]) -> str:
    from ruamel.yaml import YAML

    from paceline.config.yaml_text.scalars import parse_number
    from paceline.core.json_types import JsonObject, put_at

    section: JsonObject = {}
    for key, answer in answers.items():
        number = parse_number(answer)
        put_at(section, key.split("."), answer if number is None else int(number))
    text = io.StringIO()
    text.write("# written by `paceline launch --init`; docs/reference/config.md describes every key\n")
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False
    writer.dump({KEY: newest(), _SECTION: section}, text)
    return text.getvalue()
