"""The version of the config's schema: stated, newer, older with what has changed since."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import paceline
from paceline.cli.configs import config as app
from paceline.config import migrations
from paceline.config.load import Loaded, load_config
from paceline.config.migrations import ChangedDefault, ChangedValue, Migration, newest
from paceline.config.schema import Config
from paceline.core.errors import ConfigError

TWO = Migration(
    2,
    (
        ChangedValue("training.max_grad_norm", "it was a percentage", lambda old: old / 100),
        ChangedDefault("data.packing", "rows are packed now", False),
        ChangedDefault("training.seed", "the seed was 7", 7),
    ),
)
THREE = Migration(3, (ChangedDefault("training.seed", "the seed was 9", 9),))


@pytest.fixture
def third(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "MIGRATIONS", (TWO, THREE))


def load(tmp_path: Path, text: str, **more: Any) -> Loaded:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return load_config(str(path), **more)


def told(loaded: Loaded) -> list[tuple[str, str]]:
    return [(d.what.partition(":")[0], d.found) for d in loaded.notes if d.code == "config.migrated"]


def test_todays_version_is_stated_or_not_and_check_prints_it(tmp_path: Path) -> None:
    for text in ("training: {seed: 1}\n", "schema_version: 1\ntraining: {seed: 1}\n"):
        loaded = load(tmp_path, text)
        assert loaded.version == newest() and loaded.config.training.seed == 1 and not told(loaded)
    path = tmp_path / "whole.yaml"
    path.write_text("schema_version: 1\nmodel: {name_or_path: m}\ndata: {train: t.jsonl}\n")
    done = CliRunner().invoke(app, ["check", str(path)])
    assert f"fine (schema version {newest()})" in done.output, done.output
    mapping = {"schema_version": 1, "model": {"name_or_path": "m"}, "data": {"train": "t.jsonl"}}
    assert paceline.load_config(mapping).config.model.name_or_path == "m"


@pytest.mark.parametrize(
    ("value", "words"), [(newest() + 1, "newer"), (0, "whole number"), ("one", "whole"), ("true", "whole")]
)
def test_a_newer_version_and_what_is_none_is_the_only_finding(tmp_path: Path, value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, f"training: {{key_of_tomorrow: 1}}\nschema_version: {value}\n")
    (found,) = caught.value.diagnostics
    assert found.code == "config.schema_version" and words in found.what and found.where.endswith(".yaml:2")
    with pytest.raises(ConfigError, match="written for a newer Paceline"):
        paceline.load_config({"schema_version": newest() + 1})


def test_an_older_file_keeps_its_meaning_and_says_so(tmp_path: Path, third: None) -> None:
    loaded = load(tmp_path, "schema_version: 1\ntraining: {max_grad_norm: 50}\n")
    config = loaded.config
    assert (config.training.max_grad_norm, config.data.packing, config.training.seed) == (0.5, False, 7)
    assert sorted(told(loaded)) == [
        ("data.packing", "read as False"),
        ("training.max_grad_norm", "50 is read as 0.5"),
        ("training.seed", "read as 7"),
    ]
    assert loaded.version == 1 and loaded.provenance["training.seed"].layer == "default"
    second = load(tmp_path, "schema_version: 2\ntraining: {max_grad_norm: 50}\n")
    assert (second.config.training.max_grad_norm, second.config.training.seed) == (50, 9)
    assert second.config.data.packing and told(second) == [("training.seed", "read as 9")]
    newest_one = load(tmp_path, "training: {max_grad_norm: 50}\n")
    assert newest_one.version == 3 and newest_one.config.training.max_grad_norm == 50 and not told(newest_one)


def test_what_is_given_replaces_an_older_default_without_a_word(tmp_path: Path, third: None) -> None:
    text = "schema_version: 1\ndata: {packing: true}\n"
    loaded = load(tmp_path, text, overrides=["training.seed=3"])
    assert (loaded.config.data.packing, loaded.config.training.seed) == (True, 3) and not told(loaded)


def test_each_file_of_an_extended_chain_has_its_own_version(tmp_path: Path, third: None) -> None:
    (tmp_path / "base.yaml").write_text("schema_version: 1\ntraining: {max_grad_norm: 50, seed: 5}\n")
    loaded = load(tmp_path, "extends: base.yaml\ndata: {max_length: 64}\n")
    assert (loaded.config.training.max_grad_norm, loaded.config.training.seed) == (0.5, 5)
    assert told(loaded) == [("training.max_grad_norm", "50 is read as 0.5")] and loaded.config.data.packing
    loaded = load(tmp_path, "extends: base.yaml\nschema_version: 1\n")
    assert loaded.config.training.seed == 5 and not loaded.config.data.packing


def test_migrations_stand_in_order_and_name_keys_of_the_config() -> None:
    from paceline.config.schema import field_of

    numbers = [migration.version for migration in migrations.MIGRATIONS]
    assert numbers == list(range(2, 2 + len(numbers)))
    assert all(field_of(c.path) for migration in migrations.MIGRATIONS for c in migration.changes)


def test_a_stored_config_says_its_version() -> None:
    """What a run stores is read with a version and without one; a newer Paceline's is named as newer."""
    config = Config.model_validate({"model": {"name_or_path": "x"}, "data": {"train": "rows.jsonl"}})
    stored = {migrations.KEY: migrations.newest(), **config.to_json()}
    assert Config.from_json(stored) == Config.from_json(config.to_json()) == config
    with pytest.raises(ConfigError, match="a newer Paceline's") as caught:
        Config.from_json({**stored, migrations.KEY: migrations.newest() + 1})
    assert caught.value.diagnostics[0].code == "config.schema_version"
