"""Names of the field: no private word is an identifier of the package, and no two classes have one name."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator

import pytest
from sources import Source, sources

#: Words that no name of the package may be, and what to write instead.
WORDS = {
    "Ask, ask, asks, asked, also_ask": "Output, required_outputs, outputs, requested",
    "Asked": "LaunchOptions, JobToCheck",
    "consulted": "reference_roles",
    "informed": "attach_outputs",
    "watched": "train_metrics",
    "credit, credited": "advantage, compute_advantages",
    "learns_from, compares_answers, learnt": "masks_truncated, uses_group_baseline, has_loss",
    "said, say, Say, told, tell, speak, Told": (
        "a noun (message, notes, findings, reply) or print, report, explain"
    ),
    "placer, placed": "batch_sharder, local_batch",
    "share_over_tensors, share_head, shared_out": "apply_tensor_parallel, parallelize_head, sharded",
    "generates_together, take_turns, in_turns": "generation_is_collective, reshard_between_layers",
    "Cut, RolloutCut, cuts": "BatchLayout, StageLayout, RolloutLayout",
    "Products, Gradients, slope, slopes": "ChunkedLogits, ChunkedGrads, dlogits_draw",
    "LowPrecision, LowLinear, low_dtype": "LowPrecisionCopies, LowPrecisionLinear, activation_dtype",
    "swapped, based_on": "replace_forward, replace_base",
    "Enter, Leave": "CopyToTP, ReduceFromTP",
    "Layout, LayoutSlot, holding": "PackedSequenceInfo, AttentionContext, packed_sequences",
    "WORTH": "MIN_SHARED_TOKENS",
    "Work, Chosen, knobs, EngineKnobs": "StepSpec, StrategyChoice, training_keys, DdpOptions",
    "Answerer, ModelJudge": "RolloutGenerator, RewardModel",
    "last_words, leave_word, keep_heap, roomy_heap, roomy_cache": (
        "print_summary, configure_malloc, preallocated_cache"
    ),
    "leader": "is_group_leader",
}
INSTEAD = {word.strip(): instead for words, instead in WORDS.items() for word in words.split(",")}


def source(text: str, path: str = "paceline/a.py") -> Source:
    return Source(path, "", text, ast.parse(text))


def identifiers(node: ast.AST) -> Iterator[str]:
    """Every name that ``node`` itself holds: variables, attributes, keywords, what is defined and
    imported.
    """
    for field, value in ast.iter_fields(node):
        if isinstance(value, str) and not isinstance(node, ast.Constant) and field != "type_comment":
            yield from value.split(".")
        elif isinstance(value, list):
            # global, nonlocal, keywords of patterns
            yield from (item for item in value if isinstance(item, str))


def private_words(files: Iterable[Source]) -> list[str]:
    return [
        f"{file.at(node)}: {name}: {INSTEAD[name.strip('_')]}"
        for file in files
        for node in file.nodes()
        for name in identifiers(node)
        if name.strip("_") in INSTEAD
    ]


def shared_names(files: Iterable[Source]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for file in files:
        for node in file.nodes():
            if isinstance(node, ast.ClassDef):
                found[node.name].append(file.at(node))
    return {name: places for name, places in found.items() if len(places) > 1}


def test_no_identifier_is_a_private_word() -> None:
    assert len(sources()) > 400
    assert private_words(sources()) == [], "write the word of PyTorch, Transformers or TRL"


#: Segments of names that tell what a person does, not what a value is or a function does.
SEGMENTS = {
    "say",
    "said",
    "tell",
    "tells",
    "told",
    "ask",
    "asks",
    "asked",
    "learnt",
    "consulted",
    "informed",
}
#: The twelve locals that say least, and the most functions, in percent, that may have one of them.
VAGUE = ("found", "what", "hint", "one", "own", "known", "place", "given", "at", "whole", "made", "named")
PERCENT = 1.0


def segments(name: str) -> list[str]:
    return [s.lower() for s in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)]


def spoken_names(files: Iterable[Source]) -> list[str]:
    """Names with a segment that is banned, of files and folders too."""
    named = [
        f"{file.at(node)}: {name}"
        for file in files
        for node in file.nodes()
        for name in identifiers(node)
        if SEGMENTS & set(segments(name))
    ]
    paths = {part for file in files for part in file.path.removesuffix(".py").split("/")}
    return named + sorted(part for part in paths if SEGMENTS & set(segments(part)))


def vague_locals(files: Iterable[Source]) -> tuple[Counter[str], int]:
    """How many functions bind each vague name, as a parameter too, and how many functions there are."""
    counts: Counter[str] = Counter()
    functions = [
        node
        for file in files
        for node in file.nodes()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        bound = {
            node.arg if isinstance(node, ast.arg) else node.id
            for node in ast.walk(function)
            if isinstance(node, ast.arg) or isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        }
        counts.update(bound & set(VAGUE))
    return counts, len(functions)


def test_no_name_has_a_segment_of_speech() -> None:
    assert spoken_names(sources()) == [], (
        "a noun (message, findings, request), or report, print, check, query"
    )


def test_locals_say_what_they_hold() -> None:
    counts, functions = vague_locals(sources())
    assert functions > 4000
    assert {name: n for name, n in counts.items() if n > functions * PERCENT / 100} == {}


def test_no_two_classes_differ_by_case_only() -> None:
    names = {
        node.name.strip("_") for file in sources() for node in file.nodes() if isinstance(node, ast.ClassDef)
    }
    folded = Counter(map(str.casefold, names))
    assert sorted(name for name in names if folded[name.casefold()] > 1) == []


@pytest.mark.parametrize(
    "text", ["_SAID = 1", "class FsdpAsked: ...", "def f(told_ledger): ...", "x.asks_to_stop"]
)
def test_a_segment_of_speech_is_seen(text: str) -> None:
    assert spoken_names([source(text)])


def test_a_word_within_another_is_none() -> None:
    assert spoken_names([source("task = essay = basket = 1")]) == []


def test_no_two_classes_have_one_name() -> None:
    assert shared_names(sources()) == {}


@pytest.mark.parametrize(
    "text",
    [
        "said = 1",
        "x.said",
        "def ask(): ...",
        "def f(told): ...",
        "f(told=1)",
        "class Cut: ...",
        "from a import Ask",
        "import a.last_words",
        "import a as asked",
        "f'{said}'",
        "lambda placed: 1",
        "self._told = 1",
        "global cuts",
        "for told in x: ...",
        "[leader for leader in x]",
        "try: ...\nexcept E as told: ...",
        "match x:\n    case {**said}: ...",
    ],
)
def test_every_kind_of_name_is_seen(text: str) -> None:
    assert private_words([source(text)])


def test_a_text_may_say_what_it_likes() -> None:
    assert private_words([source("'''``said``'''\nx = {'asked': 'told'}  # said\nunsaid = saidly = 1")]) == []


def test_two_classes_of_one_name_are_seen() -> None:
    nested = source("def f():\n    class A: ...", "paceline/b.py")
    assert shared_names([source("class A: ..."), nested]) == {"A": ["paceline/a.py:1", "paceline/b.py:2"]}


#: Phrases that no text shown to users may contain, and what to write instead.
PHRASES = {
    "shared out, share out, shares out": "sharded, divided among",
    "is not built, are not built": "is not supported",
    "somebody, whoever": "a user, anyone",
    "without a word": "silently",
    "is told, are told": "the name of what happens: receives, reads, is passed",
    "sets nothing, set nothing": "has no effect",
    "asked for, asks for": "requested, requests",
    "not granted": "not applied, not supported",
    "is gone": "no longer exists, has been removed",
    "of one's own": "your own",
}


def shown_texts(file: Source) -> Iterator[tuple[ast.AST, str]]:
    """Every text of ``file`` that has words, but docstrings; values in f-strings are left out."""
    skip = {id(node.value) for node in file.nodes() if isinstance(node, ast.Expr)}
    inside = {id(part) for node in file.nodes() if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in file.nodes():
        if isinstance(node, ast.JoinedStr):
            parts = [p.value for p in node.values if isinstance(p, ast.Constant) and isinstance(p.value, str)]
            yield node, "…".join(parts)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in skip | inside:
            yield node, node.value


def dialect(files: Iterable[Source]) -> list[str]:
    instead = {phrase.strip(): new for phrases, new in PHRASES.items() for phrase in phrases.split(",")}
    return [
        f"{file.at(node)}: {phrase}: {new}"
        for file in files
        for node, text in shown_texts(file)
        for phrase, new in instead.items()
        if phrase in text.lower()
    ]


def test_no_text_for_users_is_in_dialect() -> None:
    assert dialect(sources()) == [], "write it as a PyTorch user would"


def test_dialect_is_seen_in_every_kind_of_text() -> None:
    for text in ("x = 'weights are shared out'", "f('a', hint=f'{a} is not built')", "x = 'Asked for: it'"):
        assert dialect([source(text)])
    assert dialect([source("'''weights are shared out'''\nx = 'sharded'  # shared out")]) == []
