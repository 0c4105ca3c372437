"""Nobody knows a family of models by its name, nor a strategy an optimizer by its class: their records are
asked (``plan.model.family``, ``config.optimizers``).
"""

from __future__ import annotations

import ast

from sources import sources

from paceline.config.registries.optimizers import BUILT
from paceline.plan.model.family import composites, families

#: File → the names of families that stand in it, and why.
NOT_ASKED: dict[str, tuple[set[str], str]] = {
    "checkpoint/export/gguf/config_values.py": (
        {"llama"},
        "the config that Transformers reads a Mistral's file as",
    ),
    "checkpoint/export/gguf/tokenizer.py": ({"gpt2", "llama", "qwen2"}, "tokenizers and splits of GGUF"),
    "config/import_export/programs/axolotl_prompts.py": ({"phi"}, "a style of axolotl's prompts"),
    "config/keys/nearest.py": ({"opt"}, "a part of a key's name"),
    "demo/scaling.py": ({"llama"}, "the config of the model that it trains"),
    "plan/model/model_catalogue.py": ({"gpt2"}, "the name of a model, which an error suggests"),
    "plan/model/family.py": ({"llama"}, "the layout that a family has by default"),
}
#: One entry a family that is written as GGUF, with functions of tensors: the format's own table.
TABLE = "checkpoint/export/gguf/families.py"


def named(tree: ast.AST, kinds: frozenset[str]) -> set[str]:
    """Names of families that stand in a source as texts of their own."""
    return {
        n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)
    } & kinds


def test_no_family_is_known_by_its_name() -> None:
    kinds = frozenset(families()) | frozenset(composites())
    found = {
        source.path.removeprefix("paceline/"): words
        for source in sources()
        if (words := named(source.tree, kinds))
    }
    assert found.pop(TABLE)
    assert found == {name: words for name, (words, _) in NOT_ASKED.items()}, (
        "ask family_of(…), or add a field"
    )


def test_every_way_to_know_a_family_is_seen() -> None:
    for source in (
        "kind == 'gpt2'",
        "kind in ('bloom', x)",
        "T = {'bloom': 1}",
        "match k:\n case 'opt':\n  0",
    ):
        assert named(ast.parse(source), frozenset({"gpt2", "bloom", "opt"})), source
    assert not named(ast.parse("'''gpt2 and bloom'''"), frozenset({"gpt2", "bloom"}))


def test_no_strategy_knows_an_optimizers_class() -> None:
    """``strategies.optimizer`` builds one by its row; ``state`` knows in which dtype it keeps moments."""
    rows = {row.made_by.partition(":")[::2] for row in BUILT.values() if row.made_by.startswith("paceline.")}
    homes, classes = ({pair[n] for pair in rows} for n in (0, 1))
    found = {
        source.path
        for source in sources()
        if source.room == "strategies" and source.path[:-3].replace("/", ".") not in homes
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Name | ast.Attribute) and (getattr(node, "id", "") or node.attr) in classes
    }
    assert len(classes) == 5 and found == {"paceline/strategies/replicated_state.py"}
