"""Unusable rows: reasons, places, numbers. Every dropped row is counted here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import TypedDict

from paceline.core.diagnostics import Code, Diagnostic, Severity
from paceline.core.json_types import JsonObject
from paceline.data import codes

EXAMPLES_KEPT = 5
FIELDS_NAMED = 20

CONVERTED_AWAY = "converted_away"  # never refused: the user's own function chose it

ROW_FOR_EACH = "write a row for each pair of a better (chosen) and a worse answer (rejected)"

# reason -> (its code, what it means, what to do about it)
REASONS: Mapping[str, tuple[Code, str, str]] = {
    "bad_json": (codes.DATA_BAD_JSON, "a line is not valid JSON", "correct the line"),
    "converter": (
        codes.DATA_CONVERTER,
        "the converter raised an exception for a row, or returned something that is no row",
        "correct the function that data.converter names",
    ),
    CONVERTED_AWAY: (
        codes.DATA_CONVERTED_AWAY,
        "the converter returned None, which leaves a row out",
        "return a row, if it is to be learnt from",
    ),
    "bad_csv": (
        codes.DATA_BAD_CSV,
        "a CSV record does not have the columns of the header",
        "correct the record",
    ),
    "not_an_object": (
        codes.DATA_NOT_AN_OBJECT,
        "a row is not an object with named columns",
        'write one object per row: {"messages": […]} for a list of turns, {"text": …} for a text',
    ),
    "missing_column": (
        codes.DATA_MISSING_COLUMN,
        "a row lacks a column that its format needs",
        "fill the column, or name another one under columns:",
    ),
    "not_text": (codes.DATA_NOT_TEXT, "a value is neither text nor a number", "write text"),
    "not_finite": (
        codes.DATA_NOT_FINITE,
        "a number is not finite (NaN, Infinity)",
        "write the intended text or number, or remove the row",
    ),
    "tools": (
        codes.DATA_TOOLS,
        "rows list tools, which the chat template does not render; the model would not see them",
        "set model.chat_template to a template with tools, or remove the field",
    ),
    "tools_in_turn": (
        codes.DATA_TOOLS,
        "turns list tools, which a chat template reads from the row alone",
        'move the field from the turn to the row: {"messages": […], "tools": […]}',
    ),
    "bad_tools": (
        codes.DATA_BAD_TOOLS,
        "tools, documents or chat_template_kwargs of a row are not what a template can read",
        "give tools as a list of JSON schemas ({type: function, function: {name: …, parameters: …}})",
    ),
    "tool_calls": (
        codes.DATA_TOOL_CALLS,
        "turns call tools, which the chat template does not render; the calls would be lost",
        "set model.chat_template to a template with tools, or write the call into the turn's content",
    ),
    "bad_tool_call": (
        codes.DATA_BAD_TOOL_CALL,
        "a call of a tool is not JSON with a name and arguments",
        'write {"name": …, "arguments": {…}}',
    ),
    "reasoning": (
        codes.DATA_REASONING,
        "turns have reasoning in a separate field, which the chat template does not render",
        "write it into the turn's content (<think>…</think> before the answer), or remove the field",
    ),
    "documents": (
        codes.DATA_DOCUMENTS,
        "rows have documents, which the chat template does not render",
        "set model.chat_template to a template with documents, or remove the field",
    ),
    "turn_left_out": (
        codes.DATA_TURN_LEFT_OUT,
        "the chat template leaves a turn out, so the model would not see it",
        "set model.chat_template to a template with this role, or remove the turn",
    ),
    "turn_weight": (
        codes.DATA_TURN_WEIGHT,
        "turns specify how much loss they carry; a turn has loss (1, true) or has none (0, false)",
        "write 0 or 1, or remove the field",
    ),
    "images": (
        codes.DATA_IMAGES,
        "rows contain images, audio or video, which the model does not see here",
        "for images set model.vision: true, with a model that has a vision tower; audio and video are not"
        " supported: remove such rows, or the field if the text is complete without it",
    ),
    "image_count": (
        codes.DATA_IMAGE_COUNT,
        "a row has more marks than pictures, or more pictures than marks",
        "write <image>, or a part of type image, once for each of the row's images",
    ),
    "image_missing": (
        codes.DATA_IMAGE_MISSING,
        "a picture's file is missing",
        "correct the path, or set data.media_dir to the folder that it starts from",
    ),
    "image_outside": (
        codes.DATA_IMAGE_OUTSIDE,
        "a picture lies outside data.media_dir",
        "set data.media_dir to a folder that holds all pictures",
    ),
    "image_url": (
        codes.DATA_IMAGE_URL,
        "a picture is named by an address on the network",
        "download it under data.media_dir and write its path",
    ),
    "image_damaged": (
        codes.DATA_IMAGE_DAMAGED,
        "a picture cannot be decoded",
        "replace the file",
    ),
    "image_bomb": (
        codes.DATA_IMAGE_BOMB,
        "a picture has more pixels than data.image_refuse_pixels",
        "make it smaller, or increase data.image_refuse_pixels",
    ),
    "image_kind": (
        codes.DATA_IMAGE_KIND,
        "a picture has several frames, more than 8 bits a channel, or is a drawing",
        "convert it to an 8-bit JPEG or PNG",
    ),
    "image_shape": (
        codes.DATA_IMAGE_SHAPE,
        "the model's image processor refuses the shape of a picture",
        "crop it",
    ),
    "image_mark": (
        codes.DATA_IMAGE_MARK,
        "the rendered conversation has more or fewer marks than pictures",
        "set model.chat_template to the model's own template; write <image> in place of the model's token",
    ),
    "image_cut": (
        codes.DATA_IMAGE_CUT,
        "truncation would cut into a picture or remove it",
        "increase data.max_length, or set data.image_max_pixels",
    ),
    "unknown_field": (
        codes.DATA_UNKNOWN_FIELD,
        "rows have fields that nothing reads, and data.strict is set",
        "rename them to fields that are read, remove them, or set data.strict: false to have them counted",
    ),
    "bad_messages": (
        codes.DATA_BAD_MESSAGES,
        "messages are not a list of turns with a role and a text",
        "write [{role: …, content: …}, …]",
    ),
    "several_texts": (
        codes.DATA_BAD_MESSAGES,
        "a column holds a list of texts, where a row has one text, or turns with roles",
        f"{ROW_FOR_EACH}; turns are [{{role: …, content: …}}, …]",
    ),
    "other_prompt": (
        codes.DATA_BAD_MESSAGES,
        "a row's prompt ends with an answer, or its answers repeat another prompt",
        "end the prompt with the question: what the model says, its beginning too, belongs to the answers",
    ),
    "unknown_role": (
        codes.DATA_UNKNOWN_ROLE,
        "a turn has an unknown role",
        "use system, user, assistant, tool (ShareGPT: system, human, gpt, observation)",
    ),
    "empty": (codes.DATA_EMPTY, "the row has no text, or no question", "write it, or remove the row"),
    "no_answer": (
        codes.DATA_NO_ANSWER,
        "there is no answer to train on",
        "add the answer, or remove the row",
    ),
    "same_answers": (
        codes.DATA_SAME_ANSWERS,
        "the chosen and the rejected answer are identical",
        "remove the row: it expresses no preference",
    ),
    "bad_label": (
        codes.DATA_BAD_LABEL,
        "the label of an answer is neither true nor false",
        "write true or false",
    ),
    "several_documents": (
        codes.DATA_BAD_MESSAGES,
        "a query has several documents that answer it, where in-batch negatives know one",
        "write a row for each of them (a data.converter does it)",
    ),
    "bad_grade": (
        codes.DATA_BAD_GRADE,
        "the grade of a document is not a number, or there are more or fewer grades than documents",
        "write a finite number for each document, or remove the column",
    ),
    "no_class": (
        codes.DATA_NO_CLASS,
        "a row has no label, or one that is neither a name nor a whole number",
        "write a name, a whole number from 0, or a list of either (regression is not supported)",
    ),
    "class_vector": (
        codes.DATA_NO_CLASS,
        "the labels of a row are a vector of 0 and 1, not the classes themselves",
        "write the numbers of the classes that are 1: [0, 2] for [1.0, 0.0, 1.0]; a data.converter does it",
    ),
    "bad_margin": (
        codes.DATA_BAD_MARGIN,
        "the margin of a pair is not a number",
        "write a finite number, or remove the column",
    ),
    "template_refused": (
        codes.DATA_TEMPLATE_REFUSED,
        "the chat template raised an error for the conversation",
        "reorder the turns as the template requires, or set model.chat_template",
    ),
    "template_costly": (
        codes.DATA_TEMPLATE_COSTLY,
        "the chat template does not terminate, or takes more time or memory than conversations should",
        (
            "set model.chat_template to another one, such as chatml; a template is a program by its"
            " author, and this one was stopped"
        ),
    ),
    "template_not_incremental": (
        codes.DATA_TEMPLATE_NOT_INCREMENTAL,
        "the answer cannot be located in the rendered conversation",
        (
            "set model.chat_template to a template with {% generation %} marks (such as chatml), or"
            " data.train_on: all"
        ),
    ),
    "no_labels": (
        codes.DATA_NO_LABELS,
        "no token of the row carries loss",
        (
            "an answer with loss: false (or weight: 0) has none: give the row one with loss,"
            " or remove the row; else check that the template marks the assistant's turns"
        ),
    ),
    "too_long": (codes.DATA_TOO_LONG, "the row is longer than data.max_length", "increase data.max_length"),
    "prompt_too_long": (
        codes.DATA_PROMPT_TOO_LONG,
        "the prompt fills data.max_length and leaves no room for an answer; prompts are never truncated",
        "increase data.max_length",
    ),
    "answer_cut_off": (
        codes.DATA_ANSWER_CUT_OFF,
        "the prompt alone fills data.max_length, so no answer is left after truncation",
        "increase data.max_length",
    ),
}

ALWAYS_REFUSED = "template_costly"  # under every policy: each further row would cost as much
# handled by data.on_too_long, the others by data.on_bad_row
LENGTH_REASONS = ("too_long", "answer_cut_off", "prompt_too_long", "image_cut")


# reason -> (value of data.on_too_long, resulting verb), for hints, which do not suggest the current value
_CUT, _LEFT = ("truncate", "truncated"), ("skip", "skipped")
_POLICIES: Mapping[str, tuple[tuple[str, str], ...]] = {
    "too_long": (_CUT, _LEFT),
    "prompt_too_long": (_LEFT,),
    "answer_cut_off": (_LEFT,),
    "image_cut": (_LEFT,),
}


@dataclass(frozen=True)
class Problem:
    """A row that cannot be used as it is.

    ``reason``: a key of REASONS; ``where``: ``file:line``; ``also``: further (reason, detail).
    """

    reason: str
    where: str
    detail: str = ""
    also: tuple[tuple[str, str], ...] = ()

    def each(self) -> Iterator[tuple[str, str, str]]:
        """Yield (reason, where, detail) of every reason."""
        yield self.reason, self.where, self.detail
        yield from ((reason, self.where, detail) for reason, detail in self.also)


@dataclass
class Tally:
    """The number of rows with one problem, and the first few places."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def merge(self, other: Tally) -> None:
        """Add the rows of another tally."""
        self.count += other.count
        self.examples += other.examples[: EXAMPLES_KEPT - len(self.examples)]

    def add(self, where: str, detail: str = "") -> None:
        """Count one more row."""
        self.count += 1
        if len(self.examples) < EXAMPLES_KEPT:
            self.examples.append(f"{where}: {detail}" if detail else where)

    @property
    def first_place(self) -> str:
        """``file:line`` of the first row."""
        return self.examples[0].partition(": ")[0] if self.examples else ""


def tallies(problems: Iterable[tuple[str, str, str]]) -> dict[str, Tally]:
    """Count problems (reason, where, detail) by their reasons."""
    counts: dict[str, Tally] = {}
    for reason, where, detail in problems:
        counts.setdefault(reason, Tally()).add(where, detail)
    return counts


class TallyJson(TypedDict):
    """A ``Tally`` as JSON."""

    count: int
    examples: list[str]


class CountsJson(TypedDict):
    """``PrepareCounts`` as JSON."""

    rows_read: int
    rows_used: int
    skipped: dict[str, TallyJson]
    truncated: dict[str, TallyJson]
    train_documents: int
    eval_documents: int
    tokens: int
    labels: int
    set_aside: dict[str, int]


@dataclass
class PrepareCounts:
    """The fate of every row that was read: rows_read = rows_used + all skipped.

    ``set_aside``: metadata field (``fields.HARMLESS``) → number of rows.
    """

    rows_read: int = 0
    rows_used: int = 0
    skipped: dict[str, Tally] = field(default_factory=dict)
    truncated: dict[str, Tally] = field(default_factory=dict)
    train_documents: int = 0
    eval_documents: int = 0
    tokens: int = 0
    labels: int = 0
    set_aside: dict[str, int] = field(default_factory=dict)

    @property
    def rows_skipped(self) -> int:
        return sum(tally.count for tally in self.skipped.values())

    @property
    def rows_truncated(self) -> int:
        return sum(tally.count for tally in self.truncated.values())

    def skip(self, problem: Problem) -> None:
        """Count a skipped row."""
        self.skipped.setdefault(problem.reason, Tally()).add(problem.where, problem.detail)

    def truncate(self, problem: Problem) -> None:
        """Count a truncated row."""
        self.truncated.setdefault(problem.reason, Tally()).add(problem.where, problem.detail)

    def diagnostics(self) -> list[Diagnostic]:
        """Return warnings for skipped and truncated rows."""
        return [
            _finding(
                reason,
                tally,
                verb,
                Severity.NOTE if reason == CONVERTED_AWAY else Severity.WARNING,
                self.rows_read,
            )
            for verb, counts in (("skipped", self.skipped), ("truncated", self.truncated))
            for reason, tally in counts.items()
        ]

    def to_json(self) -> JsonObject:
        """Return plain JSON types, in the form of ``CountsJson``."""
        return asdict(self)

    @staticmethod
    def from_json(data: CountsJson) -> PrepareCounts:
        """The inverse of ``to_json``."""
        skipped, truncated = (
            {reason: Tally(tally["count"], list(tally["examples"])) for reason, tally in counts.items()}
            for counts in (data["skipped"], data["truncated"])
        )
        return PrepareCounts(
            data["rows_read"],
            data["rows_used"],
            skipped,
            truncated,
            data["train_documents"],
            data["eval_documents"],
            data["tokens"],
            data["labels"],
            data["set_aside"],
        )


def fields_unread(unread: Mapping[str, Tally], where: str) -> list[Diagnostic]:
    """Return one note on all unread fields, each with its number of rows and the first of them."""
    if not unread:
        return []
    most = sorted(unread.items(), key=lambda item: (-item[1].count, item[0]))
    listed = ", ".join(
        f"{name[:80]} ({t.count:,} {'row' if t.count == 1 else 'rows'}, first {t.first_place})"
        for name, t in most[:FIELDS_NAMED]
    )
    more = f", and {len(most) - FIELDS_NAMED} more" if len(most) > FIELDS_NAMED else ""
    counts = {name: tally.count for name, tally in most[:FIELDS_NAMED]}
    return [codes.DATA_FIELDS_UNREAD(where, listed=listed, more=more, evidence=counts)]


def in_a_row(answers: Tally, where: str, of: str) -> list[Diagnostic]:
    """Return the note on rows with consecutive answers; ``of`` describes the rows that were read."""
    if not answers.count:
        return []
    rows = f"{answers.count:,} of {of} rows"
    evidence = {"rows": answers.count}
    return [codes.DATA_ANSWERS_IN_A_ROW(where, answers.first_place, rows=rows, evidence=evidence)]


def refuses(reason: str, on_bad_row: str, on_too_long: str) -> bool:
    """Whether rows that are unusable for this reason are an error; otherwise they are counted and left
    out."""
    if reason in (ALWAYS_REFUSED, CONVERTED_AWAY):
        return reason == ALWAYS_REFUSED
    return (on_too_long if reason in LENGTH_REASONS else on_bad_row) == "refuse"


def refusal(problems: Mapping[str, Tally], rows_read: int, of: str = "") -> tuple[Diagnostic, ...]:
    """Return the errors of refused rows, one per reason; ``of`` describes the rows that were read (empty:
    all)."""
    return tuple(
        _finding(reason, tally, "refused", Severity.ERROR, rows_read, of)
        for reason, tally in problems.items()
    )


def left_out(problems: Mapping[str, Tally], rows_read: int) -> tuple[Diagnostic, ...]:
    """Return one error per reason why rows were skipped, for when no row is left."""
    return tuple(_finding(r, tally, "skipped", Severity.ERROR, rows_read) for r, tally in problems.items())


def _finding(
    reason: str, tally: Tally, verb: str, severity: Severity, rows_read: int, of: str = ""
) -> Diagnostic:
    code, meaning, advice = REASONS[reason]
    rows = "row" if rows_read == 1 else "rows"
    if other := [policy for policy, when in _POLICIES.get(reason, ()) if when != verb]:
        advice += f", or set data.on_too_long: {' or '.join(other)}"
    if verb == "refused" and reason not in (*LENGTH_REASONS, ALWAYS_REFUSED):
        advice += "; data.on_bad_row: skip skips such rows (and counts them)"
    more = tally.count - len(tally.examples)
    return code(
        f"{meaning} ({tally.count:,} of {of}{rows_read:,} {rows} {verb})",
        tally.first_place,
        "; ".join(tally.examples) + (f"; and {more:,} more" if more > 0 else ""),
        advice,
        severity,
        {"count": tally.count, "examples": list(tally.examples)},
    )
