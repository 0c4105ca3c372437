"""Quick checks of a config's data and tokenizer: present, not empty, known format, chat template.

Check for special tokens in expected answers: the model learns them, but generated text never shows
them.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import DataError
from paceline.core.files import is_local_name, open_file, pointers_in, read_text, special_files
from paceline.data import codes
from paceline.data.chat_template.template_texts import (
    idle_options,
    look_at_template,
    no_template,
    template_text,
    templates_in,
)
from paceline.data.preflight.chat_template import local_template, look_through, named_tokens
from paceline.data.preflight.find_sets import (
    DatasetHead,
    LocatedDataset,
    converter_named,
    find_set,
    read_head,
    sections_of,
)
from paceline.data.rows.examples import Reading, RowReader, answers_in_a_row
from paceline.data.rows.formats import Example
from paceline.data.rows.kinds.base import DOCUMENTS, RowKind
from paceline.data.rows.kinds.prompts import PROMPTS
from paceline.data.rows.row_errors import (
    CONVERTED_AWAY,
    LENGTH_REASONS,
    Problem,
    Tally,
    in_a_row,
    left_out,
    refusal,
    tallies,
)
from paceline.data.sources.file_kinds import is_packed, kind_of
from paceline.data.sources.locate import SAVED, is_own
from paceline.data.tokenizer.file_facts import SpecialTexts, special_in_files
from paceline.data.tokenizer.load import tokenizer_files, tokenizer_folder, tokenizer_here
from paceline.rules import codes as rules_codes

if TYPE_CHECKING:
    from paceline.config.sections.data import DataSection, Dataset
    from paceline.config.sections.model import ModelSection


def unshown_tokens(
    model: ModelSection, head: DatasetHead, reading: Reading, where: str
) -> Iterator[Diagnostic]:
    """Warn of special tokens in the expected answers of the first rows; ``where`` names the data set.

    End-of-text tokens and the chat template's markers do not count.
    """
    special = _of_answers(model)
    if special.tokens:
        examples = (example for _, those in head.usable(reading) for example in those)
        yield from unshown(special, expected_texts(examples), where, added=model.add_special_tokens)


def unshown(
    special: SpecialTexts, texts: Iterable[str], where: str, *, added: Iterable[str] = ()
) -> Iterator[Diagnostic]:
    """Warn if ``texts``, expected answers, have special tokens. ``added``: those that the config adds."""
    found = list(dict.fromkeys(token for text in texts for token in special.found_in(text)))
    if not found:
        return
    own = [token for token in found if token in set(added)]
    remedy = (
        f"model.add_tokens: {json.dumps(own, ensure_ascii=False)} instead of model.add_special_tokens"
        if own
        else "write these marks as ordinary text, or as tokens that a tokenizer has from model.add_tokens"
    )
    yield codes.DATA_SPECIAL_IN_ANSWER(where, ", ".join(found), hint=remedy)


def expected_texts(examples: Iterable[Example]) -> Iterator[str]:
    """Yield the texts of the answers that rows expect."""
    for example in examples:
        if example.facts and (answer := json.loads(example.facts).get("answer")) is not None:
            yield str(answer)
        for turn in example.messages[example.learn_from :]:
            if turn["role"] == "assistant":
                yield turn["content"]


def _of_answers(model: ModelSection) -> SpecialTexts:
    folder, added = tokenizer_here(model), frozenset(model.add_special_tokens)
    if folder is None:
        return SpecialTexts(added)
    template = local_template(model)
    written = "".join(template.texts.values()) if template is not None else ""
    ends = frozenset(named_tokens(folder).values())
    of_files = {token for token in special_in_files(folder) - ends if token not in written}
    return SpecialTexts(added | of_files)


#: A JSON list must be read completely for its first row; larger ones are left to the preparation.
MOST_BYTES = 64 << 20
_PACKS = 8  # how much smaller a compressed file is taken to be
_TEMPLATES = ("chat_template.jinja", "chat_template.json", "additional_chat_templates")


def look_at_sets(
    data: DataSection, reading: Reading, *, imports: bool = False, model: ModelSection | None = None
) -> tuple[frozenset[str], list[Diagnostic]]:
    """Check every data set of ``data.train`` and ``data.eval``; return (formats of the rows, findings).

    ``imports``: check only sets that need an import (the ``datasets`` library, or the user's code);
    ``model``: look at the first rows through its chat template, too.
    """
    formats: set[str] = set()
    findings: list[Diagnostic] = []
    refuses = data.on_bad_row == "refuse"
    for key, sections in (("data.train", data.train), ("data.eval", data.eval or ())):
        empty: list[tuple[Dataset, tuple[Diagnostic, ...]]] = []
        for section in sections:
            wrong: Iterable[Diagnostic] = ()
            try:
                data_set = find_set(key, section)
                findings += () if imports else _misspelt(key, section, data_set)
                needed = bool(_imported(section, reading.converter))
                if needed if imports else is_looked_into(data_set, reading):
                    head = read_head(data_set, reading)
                    formats.add(head.shape.format)
                    findings += (at_key(key, section, note) for note in _in_a_row(head, reading))
                    bad, usable = _bad_rows(head, reading)
                    if refuses:
                        wrong = refusal(bad, len(head.head), of="" if head.is_whole else "the first ")
                    elif head.is_whole and not usable:
                        empty.append((section, left_out(bad, len(head.head))))
                    if model is not None and not wrong:
                        wrong = [
                            *look_through(model, data_set, reading, refuses=refuses),
                            *unshown_tokens(model, head, reading, section.path),
                        ]
            except DataError as error:
                wrong = error.diagnostics
            findings += (at_key(key, section, finding) for finding in wrong)
        if empty and len(empty) == len(sections):
            findings.append(
                codes.DATA_NO_USABLE_ROWS(
                    "no row can be used", key, "all of them are skipped", "the reasons follow"
                )
            )
            findings += (at_key(key, section, reason) for section, reasons in empty for reason in reasons)
    return frozenset(formats), findings


def imported_sets(data: DataSection) -> list[str]:
    """Return the sets that only an import can read: folders of the ``datasets`` library, functions that
    return or convert rows. Missing paths are reported elsewhere.
    """
    return list(
        dict.fromkeys(n for _, section in sections_of(data) for n in _imported(section, data.converter))
    )


def _imported(section: Dataset, converter: str | None) -> list[str]:
    saved = any((Path(section.path).expanduser() / name).is_file() for name in SAVED)
    paths = [section.path] if saved or is_own(section.path) else []
    return [*paths, *filter(None, [converter_named(section, converter)])]


def missing_sets(data: DataSection, key: str) -> Iterator[Diagnostic]:
    """Yield findings about missing data sets under ``key`` (``data.train``, ``data.eval``)."""
    for _, section in sections_of(data, key):
        try:
            yield from _misspelt(key, section, find_set(key, section))
        except DataError as error:
            yield from (at_key(key, section, finding) for finding in error.diagnostics)


def _misspelt(key: str, section: Dataset, data_set: LocatedDataset) -> Iterator[Diagnostic]:
    """Report a name that could be on the hub but nearly matches a local file or folder."""
    path = Path(section.path)
    if data_set.located.kind != "hub" or not path.parent.is_dir():
        return
    near = difflib.get_close_matches(path.name, [p.name for p in path.parent.iterdir()], n=3, cutoff=0.8)
    if near:
        yield rules_codes.DATA_MISSING(
            "there is no such file or folder, but a file with a similar name exists",
            key,
            section.path,
            ", ".join(str(path.parent / name) for name in near),
        )


def columns_of(data: DataSection, key: str) -> frozenset[str] | None:
    """Return the column names that a reward function gets for ``key``, from the first rows of each set.

    None if some are not read here, or there are none.
    """
    names: set[str] = set()
    reading = Reading("all", PROMPTS, converter=data.converter)
    for _, section in sections_of(data, key):
        data_set = find_set(key, section)
        if not is_looked_into(data_set, None):
            return None
        for _, examples in read_head(data_set, reading).usable(reading):
            names |= {name for example in examples for name in json.loads(example.facts)}
    return frozenset(names - {"prompt"}) or None


@dataclass(frozen=True)
class FirstExamples:
    """The ``examples`` of the first usable rows. ``whole``: these are all rows. ``everywhere``: every data
    set was read, so they have the format of all rows.
    """

    examples: list[Example]
    whole: bool
    everywhere: bool


def first_examples(data: DataSection, reading: Reading, *keys: str) -> FirstExamples:
    """Return the first examples of ``data.train`` and ``data.eval``, or of those that ``keys`` name.

    Data sets that are not read here mean that there are further rows. Raises DataError as ``look_at_sets``
    finds it.
    """
    data_sets = [find_set(key, section) for key, section in sections_of(data, *keys)]
    heads = [read_head(data_set, reading) for data_set in data_sets if is_looked_into(data_set, reading)]
    everywhere = len(heads) == len(data_sets)
    examples = [example for head in heads for _, those in head.usable(reading) for example in those]
    return FirstExamples(examples, everywhere and all(head.is_whole for head in heads), everywhere)


def at_key(key: str, section: Dataset, finding: Diagnostic) -> Diagnostic:
    """Move a finding to the config key; the file becomes part of ``value``."""
    if finding.code == codes.DATA_TEMPLATE_COSTLY.name:
        return finding  # no fault of the rows: it names the template's key
    file = finding.where or section.path
    # rows name their place
    value = finding.found if finding.found.startswith(file) else f"{file}: {finding.found}"
    return replace(finding, where=key, found=value if finding.found else file)


def is_looked_into(data_set: LocatedDataset, reading: Reading | None) -> bool:
    """Whether the first rows can be read quickly; Arrow and hub data sets need other libraries.

    With ``reading``: also without the user's own code.
    """
    located = data_set.located
    if reading is not None and converter_named(data_set.section, reading.converter):
        return False
    lists = [file for file in located.files[:1] if kind_of(file) == "json"]
    # A compressed file is larger once it is read
    most = {file: MOST_BYTES // (_PACKS if is_packed(file) else 1) for file in lists}
    return located.kind == "files" and all(file.stat().st_size <= size for file, size in most.items())


def look_at_tokenizer(
    model: ModelSection, formats: frozenset[str], kind: RowKind = DOCUMENTS
) -> Iterator[Diagnostic]:
    """Yield findings about a tokenizer in a local folder; hub names are left to the download.

    ``formats``: of the rows, which are of ``kind``.
    """
    name = model.tokenizer or model.name_or_path
    key = "model.tokenizer" if model.tokenizer else "model.name_or_path"
    if not name:
        return
    folder = Path(name).expanduser()
    beside = folder.parent != Path(".") and any(folder.parent.glob("*/tokenizer*"))  # models are here
    if model.tokenizer and beside and not folder.exists() and name.count("/") == 1:
        there = ", ".join(sorted({f.parent.name for f in folder.parent.glob("*/tokenizer*")})[:6])
        yield codes.DATA_NO_TOKENIZER(
            f"there is no tokenizer '{name}'",
            key,
            f"in {folder.parent}: {there}",
            "set model.tokenizer to a folder with tokenizer.json, or a name on the hub",
        )
        return
    local = folder.is_dir() or is_local_name(name) or folder.exists()
    if not local or (key == "model.name_or_path" and not folder.is_dir()):
        return  # on the hub; or the model's folder is missing, which is reported elsewhere
    template: str | None = None
    try:
        template = template_text(model.chat_template)
        tokenizer_folder(model)
    except DataError as error:
        yield from (
            replace(d, where=key if d.code == codes.DATA_NO_TOKENIZER.name else d.where)
            for d in error.diagnostics
        )
        return
    if special := special_files(folder):
        yield codes.DATA_BAD_TOKENIZER(
            "the tokenizer's folder contains something that is not a regular file",
            key,
            f"{folder}: {', '.join(special[:4])}",
            "remove it, or name another folder",
        )
        return
    if (pointers := pointers_in(folder, key)) is not None:
        yield pointers
        return
    yield from _damaged_files(folder, key)
    if template is None and formats & kind.conversations and not _has_template(folder):
        yield no_template(str(folder))
    elif bad := look_at_template(
        template, folder if formats & kind.conversations or model.chat_template_kwargs else None
    ):
        yield bad
    elif model.chat_template_kwargs:
        used = templates_in(folder) if template is None else {"": template}
        unread = not used and _has_template(folder)
        if not unread and (idle := idle_options(used.values(), model.chat_template_kwargs)):
            yield idle


def _damaged_files(folder: Path, key: str) -> Iterator[Diagnostic]:
    """Report the tokenizer's files that cannot be read, or are not complete."""
    for file in tokenizer_files(folder):
        try:
            wrong = file.suffix == ".json" and _cut(file)
        except OSError as error:
            yield codes.DATA_BAD_TOKENIZER(
                "a file of the tokenizer cannot be read",
                key,
                f"{file}: {error.strerror or error}",
                f"let this user read it: chmod a+r {file.name}",
            )
            continue
        if wrong:
            yield codes.DATA_BAD_TOKENIZER(
                "a file of the tokenizer is damaged or truncated",
                key,
                f"{file}: {wrong}",
                "copy or download it again",
            )


def _cut(file: Path) -> str:
    """Return why a file is not complete JSON, from its first and last bytes only, since a vocabulary may be
    large.

    Raises OSError.
    """
    with open_file(file) as stream:
        head = stream.read(64).lstrip()
        stream.seek(max(0, file.stat().st_size - 64))
        tail = stream.read().rstrip()
    ends = (head[:1], tail[-1:]) in ((b"{", b"}"), (b"[", b"]"))
    return "" if ends else f"{file.stat().st_size} bytes, not complete JSON"


def _has_template(folder: Path) -> bool:
    if any((folder / name).exists() for name in _TEMPLATES):
        return True
    try:
        return bool(json.loads(read_text(folder / "tokenizer_config.json")).get("chat_template"))
    except (OSError, ValueError, AttributeError):
        return False


def _in_a_row(head: DatasetHead, reading: Reading) -> list[Diagnostic]:
    """Return the note on rows with consecutive answers, among the rows that are read here."""
    answers = Tally()
    learns = reading.kind.learns_tokens and not reading.kind.answered
    for row, examples in head.usable(reading) if learns else ():
        if answers_in_a_row(examples):
            answers.add(row.where)
    return in_a_row(answers, "", f"{'' if head.is_whole else 'the first '}{len(head.head):,}")


def _bad_rows(head: DatasetHead, reading: Reading) -> tuple[dict[str, Tally], int]:
    """Return the first rows that cannot be used, by reason, and how many can."""
    reader = RowReader(head.shape, reading)
    problems = [result for row in head.head if isinstance(result := reader.read_raw(row), Problem)]
    beside = (*LENGTH_REASONS, CONVERTED_AWAY)
    bad = tallies(problem for p in problems for problem in p.each() if problem[0] not in beside)
    return bad, len(head.head) - len(problems)


def check_feeds(num_rows: int, dp_size: int, *, what: str = "training") -> list[Diagnostic]:
    """Return a finding if there are fewer rows than data-parallel ranks: some would never get a row."""
    if num_rows >= dp_size:
        return []
    return [
        codes.DATA_TOO_FEW_ROWS(
            f"{num_rows} {what} row{'s' if num_rows != 1 else ''} cannot be divided among"
            f" {dp_size} processes: some would never get one",
            "data.train" if what == "training" else "data.eval",
            f"{num_rows} rows (documents packed together count as one), {dp_size} processes",
            f"use at most --nproc {max(num_rows, 1)}, data.packing: false, or more data",
        )
    ]
