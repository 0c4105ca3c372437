"""Data preparation, before any process group: rows to token tables, once, cached under a fingerprint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from paceline.core.diagnostics import Diagnostic, Severity
from paceline.core.errors import DataError
from paceline.core.json_types import Json, JsonObject
from paceline.data import codes
from paceline.data.dataset_store import EVAL, TOKENIZER, TOKENS, TRAIN, Meta, Store, load_index
from paceline.data.images.decide import media_folders, sees_pictures, settings_of
from paceline.data.images.table import IMAGES, ImageTable, changed_picture
from paceline.data.preflight.find_sets import LocatedDataset, converter_named, find_sets, read_head
from paceline.data.prepare.build import PrepareProgress, Report, build
from paceline.data.prepare.fingerprint import code_version, definition, fingerprint, located_digest
from paceline.data.prepare.tokenize import Setup
from paceline.data.rows.examples import Reading, system_text
from paceline.data.rows.kinds.base import DOCUMENTS, RowKind
from paceline.data.rows.row_errors import CountsJson, PrepareCounts
from paceline.data.sources.readers import total_bytes
from paceline.data.sources.user_code import converter_digest
from paceline.data.token_table import TokenTable
from paceline.data.tokenizer.identity import tokenizer_identity
from paceline.data.tokenizer.load import tokenizer_spec
from paceline.models.special_tokens import SpecialTokens
from paceline.plan.images.settings import ImageSettings
from paceline.rules import codes as rules_codes

if TYPE_CHECKING:
    from paceline.config.sections.data import DataSection
    from paceline.config.sections.model import ModelSection


@dataclass(frozen=True)
class Prepared:
    """A prepared data set, memory-mapped.

    vocab_size      embedding rows needed: the tokenizer's largest token id (with added tokens) + 1
    pad_token_id    token of filler rows; it has no loss
    stop_token_ids  tokens that end an answer (end of text, end of turn); a base model may have others
    tokenizer_path  the tokenizer as used (added tokens, final template), to be saved with the weights
    longest         length of the longest document in tokens
    train_fingerprint  fingerprint of the training data alone, independent of the evaluation set
    special_tokens  the tokenizer's special tokens, and the tokens that end an answer
    definition      how fingerprints are computed: they are comparable only if it is equal
    images          how pictures become tokens and pixels; None where rows have none
    notes           findings about assumptions, dropped or truncated rows and overlaps; never errors
    """

    path: Path
    fingerprint: str
    train: TokenTable
    eval: TokenTable | None
    counts: PrepareCounts
    vocab_size: int
    pad_token_id: int
    stop_token_ids: tuple[int, ...]
    tokenizer_path: Path
    longest: int
    max_token_id: int
    notes: tuple[Diagnostic, ...]
    from_cache: bool
    train_fingerprint: str = ""
    definition: str = ""
    special_tokens: SpecialTokens = SpecialTokens()
    images: ImageSettings | None = None


def prepare(
    data: DataSection,
    model: ModelSection,
    *,
    seed: int,
    cache_dir: Path,
    report: Callable[[PrepareProgress], None] | None = None,
    max_positions: int | None = None,
    kind: RowKind = DOCUMENTS,
    vision: bool | None = None,
) -> Prepared:
    """Tokenize a config's data, whose rows are of ``kind``, or find it in the cache.

    ``seed`` determines the validation split; ``max_positions`` (the model's, if known): longer documents are
    refused. ``vision``: whether the model sees pictures (``Plan.vision``; None: by the config and the rows).
    Two processes that prepare the same data set do the work once. Raises DataError with every reason known at
    that point.
    """
    # Nobody need listen
    report_progress: Report = report or (lambda _: None)
    train, evaluation = sets_of(data)
    setup = setup_of(data, model, kind, vision=vision)
    report_progress(PrepareProgress("fingerprint"))
    key = key_of(data, setup, train, evaluation, seed, cache_dir)
    store = Store(cache_dir)
    meta, from_cache, renewed = _settled(
        store,
        key,
        lambda: report_progress(PrepareProgress("waiting")),
        lambda: build(store, key, setup, train, evaluation, data, seed=seed, report=report_progress),
        lambda: changed_picture(store.folder(key), media_folders(data)) if setup.images else "",
    )
    if from_cache and setup.reading.answers_only:  # the key of the cache does not tell who asked
        for data_set in (*train, *evaluation):
            read_head(data_set, setup.reading)
    meta = _with_current_paths(meta, [data_set.section.path for data_set in (*train, *evaluation)])
    prepared = opened(store, key, meta, data, from_cache=from_cache)
    # Add what is known only now: the training data's own fingerprint, a damaged cache, too long documents.
    alone = key_of(data, setup, train, [], seed, cache_dir, located=False)
    if pictures := meta.get("pictures"):  # their contents, which are known once they are read
        alone = fingerprint({"rows": alone, "pictures": pictures["train"]})
        whole = fingerprint({"rows": key, "pictures": pictures["all"]})
        prepared = replace(prepared, fingerprint=whole, images=setup.images)
    prepared = replace(prepared, train_fingerprint=alone, definition=definition())
    report_progress(
        PrepareProgress("done", rows=prepared.counts.rows_read, fraction=1.0, tokens=prepared.counts.tokens)
    )
    if renewed is not None:
        prepared = replace(prepared, notes=(renewed, *prepared.notes))
    if max_positions is not None and prepared.longest > max_positions:
        # Positions restart at 0 in every document of a packed row.
        tables = [table for table in (prepared.train, prepared.eval) if table is not None]
        count = int(sum(np.count_nonzero(table.lengths > max_positions) for table in tables))
        longest = f"{count:,} documents, the longest has {prepared.longest:,} tokens"
        raise DataError(codes.DATA_MAX_POSITIONS("data.max_length", longest, max_positions=max_positions))
    return prepared


def setup_of(data: DataSection, model: ModelSection, kind: RowKind, *, vision: bool | None = None) -> Setup:
    """Return how ``prepare`` tokenizes rows. Raises DataError if the tokenizer's files are missing.

    ``vision``: whether the model sees pictures; None: by the config and the first rows.
    """
    if vision is None:
        vision = sees_pictures(data, model, kind)
    return Setup(
        tokenizer_spec(model),
        Reading.of(data, kind, images=vision),
        data.max_length,
        data.on_too_long,
        data.truncation,
        data.max_prompt_length,
        settings_of(data, model) if vision else None,
    )


def _settled(
    store: Store, key: str, waiting: Callable[[], None], make: Callable[[], None], stale: Callable[[], str]
) -> tuple[Meta, bool, Diagnostic | None]:
    """Return the verified data set of this key, building it if needed. Raises DataError. Returns its
    ``meta.json``, whether it was cached, and why a former one was built anew. ``stale()``: why a whole one is
    no longer what its rows name; empty if it is.
    """
    renewed = None
    if not store.writable() and store.folder(key).is_dir():  # read-only cache: no locks, no repair
        return _verified(store, key), True, None
    with store.node_lock(key, waiting):
        meta, damage = store.verified(key)
        if meta is not None and not (changed := stale()):
            return meta, True, None
        if meta is not None:
            renewed = codes.DATA_IMAGE_RENEWED("data.train", changed)
        elif damage:
            renewed = codes.DATA_CACHE_REBUILT(str(store.folder(key)), damage)
        with store.lock(key, waiting):
            meta, _ = store.verified(key)  # another node may have published it meanwhile
            if meta is not None and not stale():
                return meta, True, None
            make()
            return _verified(store, key), False, renewed


def _verified(store: Store, key: str) -> Meta:
    meta, why = store.verified(key)
    if meta is None:
        raise DataError(codes.DATA_CACHE_DAMAGED(str(store.folder(key)), why))
    return meta


def train_fingerprint_of(
    data: DataSection, model: ModelSection, seed: int, cache_dir: Path, *, kind: RowKind, most_bytes: int
) -> str | None:
    """Return ``Prepared.train_fingerprint`` for local files, without preparing them.

    None if something would be downloaded, or pictures or more than ``most_bytes`` read. Raises DataError for
    missing files.
    """
    train, evaluation = sets_of(data)
    sets = [*train, *evaluation]
    name = model.tokenizer or model.name_or_path
    here = all(s.located.kind == "files" for s in sets) and name and Path(name).expanduser().is_dir()
    if not here or sum(total_bytes(s.located) for s in sets) > most_bytes:
        return None
    setup = setup_of(data, model, kind)
    return None if setup.images else key_of(data, setup, train, [], seed, cache_dir)


def key_of(
    data: DataSection,
    setup: Setup,
    train: list[LocatedDataset],
    evaluation: list[LocatedDataset],
    seed: int,
    cache_dir: Path,
    *,
    located: bool = True,
) -> str:
    """Return the fingerprint of the prepared data.

    ``located``: with the folder of its pictures, whose contents are known only once they are read.
    """
    prompts = [setup.reading.query_prompt, setup.reading.document_prompt]
    return fingerprint(
        {
            "code": code_version(),
            "tokenizer": tokenizer_identity(setup.tokenizer, cache_dir),
            "train": [_identity(s, data, cache_dir) for s in train],
            "eval": [_identity(s, data, cache_dir) for s in evaluation],
            "options": [
                setup.kind.identity(),
                setup.train_on,
                data.max_length,
                data.on_bad_row,
                data.on_too_long,
                data.strict,
                *(prompts if any(prompts) else ()),  # keys of sets without them are older
                *_later_options(data, system_text(data.default_system)),
                *([_of_pictures(data, setup.images, located)] if setup.images else []),
            ],
            "split": [data.validation_split, seed] if data.validation_split else None,
        }
    )


def _later_options(data: DataSection, system: str | None) -> list[Json]:
    """Return options added later, which keys of sets prepared without them lack."""
    options: JsonObject = {
        **({"default_system": system} if system else {}),
        **({"truncation": data.truncation} if data.truncation != "end" else {}),
        **({"max_prompt_length": data.max_prompt_length} if data.max_prompt_length else {}),
        **({"train_on": data.train_on} if data.train_on in ("last", "completion") else {}),
    }
    return [options] if options else []


def _of_pictures(data: DataSection, images: ImageSettings, located: bool) -> JsonObject:
    """Return what decides how pictures become tokens and pixels."""
    folders: JsonObject = {"folders": list(media_folders(data))} if located else {}
    return {"images": images.identity(), "refuse": data.image_refuse_pixels, **folders}


def sets_of(data: DataSection) -> tuple[list[LocatedDataset], list[LocatedDataset]]:
    """Return (training, evaluation) data sets as named in the config. Raises DataError."""
    if not data.train:
        raise DataError(
            rules_codes.DATA_MISSING(
                "no training data are given",
                "data.train",
                "nothing",
                "set data.train to the path of a file or folder, or a name on the hub",
            )
        )
    if data.eval and data.validation_split:
        raise DataError(
            rules_codes.DATA_TWO_EVALS(
                "evaluation data is given twice",
                "data.validation_split",
                f"eval and validation_split {data.validation_split}",
                "set data.eval or data.validation_split, not both",
            )
        )
    return find_sets("data.train", data.train), find_sets("data.eval", data.eval or ())


def _identity(data_set: LocatedDataset, data: DataSection, cache_dir: Path) -> list[Json]:
    """Return the parts of a data set that can change its tokens: content and options, not location or
    weight."""
    section, converter = data_set.section, converter_named(data_set.section, data.converter)
    return [
        located_digest(data_set.located, section.split, cache_dir),
        [file.name for file in data_set.located.files],  # the split of a folder's files is in their names
        converter_digest(converter) if converter else [],
        section.format,
        section.split,
        section.max_rows,
        sorted(dict(section.columns).items()),
        *([{"replace": dict(section.replace)}] if section.replace else []),
    ]


def _with_current_paths(meta: Meta, paths: Sequence[str]) -> Meta:
    """Return ``meta`` with the places of the rows as this config names them.

    The same files may have been prepared under other names, by another config or from another folder.
    """
    names = {before["path"]: now for before, now in zip(meta["data_sets"], paths, strict=True)}
    if all(before == now for before, now in names.items()):
        return meta
    place = re.compile(rf"(?<![^\s;])({'|'.join(map(re.escape, names))})(?=[:/]|$)")

    def moved(value: Json) -> Json:
        if isinstance(value, str):
            return place.sub(lambda found: names[found.group()], value)
        if isinstance(value, list):
            return [moved(item) for item in value]
        return {key: moved(item) for key, item in value.items()} if isinstance(value, dict) else value

    notes: list[JsonObject] = [
        {**note, **{name: moved(note.get(name)) for name in ("where", "found", "evidence")}}
        for note in meta["notes"]
    ]
    counts = cast(CountsJson, moved(cast(Json, meta["counts"])))
    return {**meta, "notes": notes, "counts": counts}


def opened(store: Store, key: str, meta: Meta, data: DataSection, *, from_cache: bool) -> Prepared:
    """Open the data set that ``meta`` describes, memory-mapped."""
    folder, group = store.folder(key), meta["group"]
    weights = tuple(float(section.weight) for section in data.train)
    train = TokenTable(folder / TOKENS, load_index(folder / TRAIN), weights, group)
    held_out = EVAL in meta["files"]
    held = TokenTable(folder / TOKENS, load_index(folder / EVAL), group=group) if held_out else None
    if IMAGES in meta["files"]:
        pictures = ImageTable(folder, media_folders(data))
        for table in filter(None, (train, held)):
            table.images = pictures
    stops = tuple(meta["stop_token_ids"])
    eos, bos, pad = meta["special_tokens"]
    return Prepared(
        path=folder,
        fingerprint=key,
        train=train,
        eval=held,
        counts=PrepareCounts.from_json(meta["counts"]),
        vocab_size=meta["vocab_size"],
        pad_token_id=meta["pad_token_id"],
        stop_token_ids=stops,
        special_tokens=SpecialTokens(eos, bos, pad, stops),
        tokenizer_path=folder / TOKENIZER,
        longest=meta["longest"],
        max_token_id=meta["max_token_id"],
        notes=(*map(Diagnostic.from_json, meta["notes"]), *_mixture_notes(train, data)),
        from_cache=from_cache,
    )


def _mixture_notes(train: TokenTable, data: DataSection) -> Iterator[Diagnostic]:
    """Yield how many documents of each weighted data set an epoch samples."""
    for number, section in enumerate(data.train):
        if section.weight != 1:
            count = int(np.count_nonzero(train.dataset == number))
            yield codes.DATA_MIXTURE(
                f"weight {section.weight:g}: {round(section.weight * count):,} draws per epoch from"
                f" {count:,} documents",
                section.path,
                severity=Severity.NOTE,
            )


def check_token_range(prepared: Prepared, embedding_rows: int) -> list[Diagnostic]:
    """Return a finding if the data holds a token id without an embedding row."""
    if prepared.max_token_id < embedding_rows:
        return []
    ids = f"token id {prepared.max_token_id}, tokenizer with {prepared.vocab_size} tokens"
    return [codes.DATA_TOKEN_RANGE("model.tokenizer", ids, embedding_rows=embedding_rows)]
