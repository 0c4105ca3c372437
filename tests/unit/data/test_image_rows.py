"""Rows with pictures, from files of every format to micro-batches, and what is said of unusable ones."""

from __future__ import annotations

import base64
import json
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from image_judges import judge, judged
from image_rows import (
    MARKS,
    SIZES,
    config_for,
    loader_of,
    png,
    prepared_of,
    source_of_rows,
    turns,
    write_pictures,
)
from PIL import Image
from transformers import PreTrainedTokenizerFast

from paceline.core.errors import DataError
from paceline.data.images.row_images import with_slots
from paceline.data.images.slots import SLOT
from paceline.data.preview import main
from paceline.data.rows.values import RowError
from paceline.data.write_rows import write_rows


def test_the_pictures_of_rows_reach_the_batch(tmp_path: Path) -> None:
    rows = [
        turns("look <image> and <image>\nwhat?", images=["a.png", "b.png"]),
        turns("nothing to see"),
        turns([{"type": "text", "text": "see"}, {"type": "image"}], images=["c.png"]),
    ]
    config = config_for(rows, tmp_path)
    prepared = prepared_of(config, tmp_path)
    source = source_of_rows(prepared, config)
    batch = source.batch(0, [0])
    assert batch.images is not None and len(batch.images.counts) == 3
    ids, token = batch.input_ids[0], loader_of(prepared, config).token_id
    assert (ids == token).nonzero()[:, 0].tolist() == batch.images.places.tolist()
    assert len(batch.images.places) == sum(batch.images.counts)
    assert not (batch.labels[0] == token).any()
    # As Transformers' whole processor has it, document by document
    texts = ["look M and M\nwhat?", "nothing to see", "seeM"]
    files = [["a.png", "b.png"], [], ["c.png"]]
    whole, pixels = judge("qwen2_vl"), []
    bounds = batch.cu_seqlens.tolist()
    for place, number in enumerate(batch.document_ids.tolist()):
        text = f"<s>user:{texts[number]}</s><s>assistant:yes</s>".replace("M", MARKS["qwen2_vl"])
        if files[number]:
            expected, arrays = judged(whole, text, [Image.open(tmp_path / n) for n in files[number]])
            pixels.append(arrays["pixel_values"])
            assert ids[bounds[place] : bounds[place + 1]].tolist() == expected
    assert np.array_equal(batch.images.inputs["pixel_values"].numpy(), np.concatenate(pixels))
    assert batch.images.position_ids is not None
    assert batch.images.position_ids.shape == (3, 1, batch.input_ids.shape[1])


ENCODED = base64.b64encode(png((20, 30))).decode()
#: Rows that mean the same: one picture a.png before the question "what?", or the pictures that they name
FORMS: dict[str, dict[str, Any]] = {
    "llava": {
        "conversations": [{"from": "human", "value": "<image>what?"}, {"from": "gpt", "value": "yes"}],
        "image": "a.png",
    },
    "llama_factory": turns("<image>what?", images=["a.png"]),
    "alpaca": {"instruction": "<image>what?", "input": "", "output": "yes", "images": ["a.png"]},
    "openai": turns(
        [{"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", "text": "what?"}]
    ),
    "responses": turns([{"type": "input_image", "image_url": "a.png"}, {"type": "text", "text": "what?"}]),
    "qwen": turns([{"type": "image", "image": "file://HERE/a.png"}, {"type": "text", "text": "what?"}]),
    "swift": turns("<img>a.png</img>what?"),
    "swift_unmarked": turns("what?", images="a.png"),
    "trl": {
        "prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}],
        "completion": [{"role": "assistant", "content": [{"type": "text", "text": "yes"}]}],
        "images": ["a.png"],
    },
    "trl_unmarked": {
        "prompt": [{"role": "user", "content": "what?"}],
        "completion": [{"role": "assistant", "content": "yes"}],
        "images": ["a.png"],
    },
    "prompt": {"prompt": "what?", "completion": "yes", "image": {"bytes": None, "path": "a.png"}},
    "base64": turns("what?", images=[base64.b64encode(png((64, 48), 0)).decode()]),
    "data": turns("what?", image=f"data:image/png;base64,{base64.b64encode(png((64, 48), 0)).decode()}"),
}


def test_every_form_of_a_row_gives_the_same_tokens_and_pixels(tmp_path: Path) -> None:
    seen = {}
    for name, row in FORMS.items():
        folder = tmp_path / "x"
        folder.mkdir(exist_ok=True)
        config = config_for([json.loads(json.dumps(row).replace("HERE", str(folder)))], folder)
        prepared = prepared_of(config, folder)
        batch = source_of_rows(prepared, config).batch(0, [0])
        assert batch.images is not None, name
        seen[name] = (
            batch.input_ids[0].tolist(),
            batch.labels[0].tolist(),
            batch.images.inputs["pixel_values"],
        )
    first = seen.pop("llava")
    for name, (ids, labels, pixels) in seen.items():
        assert (ids, labels) == first[:2], name
        assert torch.equal(pixels, first[2]), name


def test_tables_hold_pictures_as_datasets_writes_them(tmp_path: Path) -> None:
    import datasets

    config_for([], tmp_path)
    rows = [
        turns("<image>what?", images=[{"bytes": (tmp_path / n).read_bytes(), "path": None}]) for n in SIZES
    ]
    kinds = datasets.Features(
        {
            "messages": [{"role": datasets.Value("string"), "content": datasets.Value("string")}],
            "images": datasets.List(datasets.Image()),
        }
    )
    table = datasets.Dataset.from_list(rows, features=kinds)
    table.save_to_disk(tmp_path / "saved")
    table.to_parquet(tmp_path / "rows.parquet")
    judges = [np.asarray(row["images"][0].convert("RGB")) for row in table]
    for path in (tmp_path / "saved", tmp_path / "rows.parquet"):
        config = config_for(path, tmp_path)
        prepared = prepared_of(config, tmp_path)
        assert prepared.train.images is not None
        loader = loader_of(prepared, config)
        ours = [loader.decoded(prepared.train.images.of(n)[0][0]) for n in range(len(rows))]
        assert all(np.array_equal(np.asarray(a), b) for a, b in zip(ours, judges, strict=True))


@pytest.mark.parametrize("row", [{"text": "the <image> cat"}, {"prompt": "the", "completion": "<image> cat"}])
def test_no_token_of_a_picture_carries_loss(row: dict[str, str], tmp_path: Path) -> None:
    config = config_for([{**row, "images": ["a.png"]}], tmp_path, "gemma3")
    prepared = prepared_of(config, tmp_path)
    ids, labels = prepared.train.row(0)
    tokens = PreTrainedTokenizerFast.from_pretrained(prepared.tokenizer_path).convert_ids_to_tokens(ids)
    learned = {token for token, label in zip(tokens, labels.tolist(), strict=True) if label >= 0}
    written = {"<start_of_image>", "<image_soft_token>", "<end_of_image>"}
    assert written <= set(tokens) and not written & learned and len(learned) > 2


def test_marks_and_pictures_must_agree(tmp_path: Path) -> None:
    rows = [
        turns("<image> <image>", images=["a.png"]),
        turns("<image>", images=["a.png", "b.png"]),
        turns("<image>"),
    ]
    with pytest.raises(DataError) as raised:
        prepared_of(config_for(rows, tmp_path), tmp_path)
    (finding,) = raised.value.diagnostics
    assert finding.code == "data.image_count" and "3 of 3 rows" in finding.what
    assert all(f"rows.jsonl:{line}" in finding.found for line in (1, 2, 3))


def test_pairs_share_their_pictures(tmp_path: Path) -> None:
    rows = [
        {"prompt": "<image>which?", "chosen": "this", "rejected": "that", "images": ["a.png"]},
        {"prompt": [{"role": "user", "content": "which?"}], "chosen": [{"role": "assistant", "content": "a"}],
         "rejected": [{"role": "assistant", "content": "b"}], "images": ["b.png"]},
        {name: turns([{"type": "image"}, {"type": "text", "text": "?"}], name)["messages"]
         for name in ("chosen", "rejected")} | {"images": ["c.png"]},
    ]  # fmt: skip
    for number, row in enumerate(rows):
        folder = tmp_path / str(number)
        folder.mkdir()
        config = config_for([row], folder)
        prepared = prepared_of(config, folder, "pairs")
        batch = source_of_rows(prepared, config).batch(0, [0])
        assert batch.images is not None and len(batch.images.counts) == 2 and not batch.shared
        assert batch.images.counts[0] == batch.images.counts[1]
        assert prepared.train.images is not None and len(prepared.train.images) == 1


def test_answers_to_other_prompts_keep_their_pictures_apart(tmp_path: Path) -> None:
    """KTO's mismatched rows: the prompt's pictures stay, those of the other prompt go."""
    rows = [
        {"prompt": "<image>which?", "completion": "this", "label": True, "images": ["a.png"]},
        {"prompt": "no picture", "completion": "that", "label": False},
        {"prompt": "<image><image>", "completion": "those", "label": True, "images": ["b.png", "c.png"]},
    ]
    config = config_for(rows, tmp_path)
    prepared = prepared_of(config, tmp_path, "labelled")
    source = source_of_rows(prepared, config, packing=False)
    token = loader_of(prepared, config).token_id
    for position, count in enumerate([1, 0, 2]):
        for batch in (source.batch(0, [position]), source.mismatched(0, [position], range(3))):
            assert (len(batch.images.counts) if batch.images else 0) == count
            tokens = int((batch.input_ids == token).sum())
            assert tokens == (sum(batch.images.counts) if batch.images else 0)
    cut = source_of_rows(prepared, config, packing=False, seq_len=12).mismatched(0, [0, 2], range(3))
    assert cut.images is None or len(cut.images.places) == sum(cut.images.counts)


def test_a_question_about_other_pictures_is_another_prompt(tmp_path: Path) -> None:
    """Equal prompts stay in one split: without its pictures a question asked of all rows would bind them."""
    rows = [turns("<image>what is it?", images=[name]) for name in (*SIZES, *SIZES)]
    prepared = prepared_of(config_for(rows, tmp_path, validation_split=2), tmp_path)
    assert prepared.eval is not None and len(prepared.train) == 6 and len(prepared.eval) == 2
    assert len({*prepared.eval.keys}) == 1 and not {*prepared.eval.keys} & {*prepared.train.keys}


def test_classes_of_pictures(tmp_path: Path) -> None:
    rows = [{"text": "<image>", "label": "cat", "image": "a.png"}, {"text": "no picture", "label": "dog"}]
    config = config_for(rows, tmp_path)
    prepared = prepared_of(config, tmp_path, "classified")
    batch = source_of_rows(prepared, config).batch(0, [0])
    assert batch.images is not None and len(batch.images.counts) == 1


def test_a_changed_file_is_prepared_anew_and_never_read_silently(tmp_path: Path) -> None:
    config = config_for([turns("<image>", images=["a.png"])], tmp_path)
    before = prepared_of(config, tmp_path)
    loader = loader_of(before, config)
    os.utime(tmp_path / "a.png")
    assert prepared_of(config, tmp_path).from_cache
    (tmp_path / "a.png").write_bytes(png((64, 48), 9))
    with pytest.raises(DataError, match="differs from the prepared picture"):
        loader.images([loader.table.of(0)], [before.train.row(0)[0]])
    after = prepared_of(config, tmp_path)
    assert not after.from_cache and after.train_fingerprint != before.train_fingerprint
    (note,) = [n for n in after.notes if n.code in ("data.image_renewed", "data.cache_rebuilt")]
    assert note.code == "data.image_renewed" and "a.png has changed" in note.found
    write_pictures(tmp_path)
    moved = tmp_path / "moved"
    moved.mkdir()
    again = prepared_of(config_for([turns("<image>", images=["a.png"])], moved), moved)
    assert again.train_fingerprint == before.train_fingerprint  # contents, not places
    for name in SIZES:
        (tmp_path / name).unlink()
    with pytest.raises(DataError, match="differs from the prepared picture"):
        loader.images([loader.table.of(0)], [before.train.row(0)[0]])


def test_pixels_are_kept_on_disk_and_are_the_same(tmp_path: Path) -> None:
    rows = [turns("<image><image>", images=["a.png", "b.png"]), turns("<image>", images=["a.png"])]
    config = config_for(rows, tmp_path, "llava_onevision", image_cache="disk")
    prepared = prepared_of(config, tmp_path)
    first, again = (source_of_rows(prepared, config).batch(0, [0]).images for _ in range(2))
    assert first is not None and again is not None
    kept = list((tmp_path / "cache" / "pixels").rglob("*.safetensors"))
    assert len(kept) == 3  # alone and not alone are processed in other ways
    assert all(torch.equal(first.inputs[n], again.inputs[n]) for n in first.inputs)
    kept[0].write_bytes(b"damaged")
    once_more = source_of_rows(prepared, config).batch(0, [0]).images
    assert once_more is not None and torch.equal(
        once_more.inputs["pixel_values"], first.inputs["pixel_values"]
    )


@pytest.mark.parametrize("kind", MARKS)
def test_random_rows_have_as_many_tokens_as_features(kind: str, tmp_path: Path) -> None:
    """20 rows a family: marks, parts, turns, lengths at which rows are cut."""
    rng = random.Random(kind)
    rows = []
    for _ in range(20):
        images: list[str] = []
        messages = []
        for _ in range(rng.randint(1, 3)):
            content: Any = ""
            for _ in range(rng.randint(0, 2)):
                images.append(rng.choice(list(SIZES)))
                content += rng.choice(["<image>", "<image>\n", "see <image> there "])
            content += "what is it " * rng.randint(1, 9)
            if rng.random() < 0.4:
                pieces = content.split("<image>")
                parts = [{"type": "text", "text": pieces[0]}]
                for piece in pieces[1:]:
                    parts += [{"type": "image"}, {"type": "text", "text": piece}]
                content = [part for part in parts if part.get("text") != ""]
            messages += [
                {"role": "user", "content": content},
                {"role": "assistant", "content": "ab " * rng.randint(1, 40)},
            ]
        rows.append({"messages": messages, **({"images": images} if images else {})})
    for number, (cut, length) in enumerate([("end", 300), ("start", 200), ("ratio", 150)]):
        for train_on in ("assistant", "all"):
            options = {"truncation": cut, "max_length": length, "train_on": train_on}
            config = config_for(rows, tmp_path, kind, on_too_long="truncate", **options)
            prepared = prepared_of(config, tmp_path)
            counts = prepared.counts
            assert counts.rows_read == 20 and set(counts.skipped) <= {"image_cut", "answer_cut_off"}
            source, loader = source_of_rows(prepared, config, seq_len=length), loader_of(prepared, config)
            for position in range(source.num_rows(0)):
                batch = source.batch(0, [position])
                tokens = int((batch.input_ids == loader.token_id).sum())
                assert tokens == (sum(batch.images.counts) if batch.images else 0), number
                assert not (batch.labels == loader.token_id).any()


def test_what_changes_tokens_or_pixels_changes_the_key(tmp_path: Path) -> None:
    row, folder = turns("<image>", images=["a.png"]), str(tmp_path)
    changes: list[dict[str, Any]] = [
        *({}, {"image_max_pixels": 1000}, {"image_min_pixels": 9000}, {"image_refuse_pixels": 99_000}),
        {"media_dir": folder + "/other"},
    ]
    (tmp_path / "other").mkdir()
    write_pictures(tmp_path / "other")
    keys = [prepared_of(config_for([row], tmp_path, **change), tmp_path).path.name for change in changes]
    config = config_for([row], tmp_path)
    wider = config.model.model_copy(update={"processor_kwargs": {"do_resize": False}})
    keys.append(prepared_of(config.model_copy(update={"model": wider}), tmp_path).path.name)
    assert len(set(keys)) == len(keys)
    assert prepared_of(config_for([row], tmp_path, image_cache="disk"), tmp_path).path.name == keys[0]


def test_slots_follow_the_order_of_the_row() -> None:
    row = {"prompt": "<image> <image>", "chosen": "a <image>", "rejected": "<image> b", "images": list("xyz")}
    columns = {name: name for name in ("prompt", "chosen", "rejected")}
    marked, images = with_slots(row, columns)
    assert [image.path for image in images] == ["x", "y", "z"]
    assert [SLOT.findall(str(marked[name])) for name in columns] == [["0", "1"], ["2"], ["2"]]
    with pytest.raises(RowError, match="image_count"):
        with_slots({**row, "images": ["x"]}, columns)


@pytest.mark.parametrize("kind", ["qwen2_vl", "gemma3", "idefics3"])
def test_rows_are_shown_with_the_places_of_their_pictures(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [turns("see <image> and <image>?", images=["a.png", "d.png"])]
    config = config_for(rows, tmp_path, kind)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(config.to_json()))
    more = ["--row", "1", "--to", str(tmp_path / "seen")]
    assert main(["--config-json", str(file), "--cache", str(tmp_path / "cache"), *more]) == 0
    text = capsys.readouterr().out
    assert main(["--config-json", str(file), "--cache", str(tmp_path / "cache"), *more]) == 2
    assert "data.image_exists" in capsys.readouterr().err
    prepared = prepared_of(config, tmp_path)
    ids, token = prepared.train.row(0)[0], loader_of(prepared, config).token_id
    places = np.flatnonzero(ids == token)
    assert "picture 1  a.png: 64 x 48 pixels" in text and f"from token {places[0] + 1} on" in text
    written = sorted((tmp_path / "seen").iterdir())
    assert len({path.name.rpartition("-")[0] for path in written}) == 2
    # The picture is there: as its tower's resolution has it
    first = Image.open(written[0]).convert("RGB")
    small = np.asarray(first.resize((4, 4), Image.Resampling.BOX), np.float64)
    own = np.asarray(Image.open(tmp_path / "a.png").resize((4, 4), Image.Resampling.BOX), np.float64)
    if kind != "idefics3":  # whose first tile is a part
        assert np.abs(small - own).mean() < 12


def test_rows_with_pictures_are_not_written_for_other_programs(tmp_path: Path) -> None:
    config = config_for([turns("<image>", images=["a.png"])], tmp_path)
    with pytest.raises(DataError, match="not written for other programs"):
        write_rows(config, "trl", tmp_path / "rows")
