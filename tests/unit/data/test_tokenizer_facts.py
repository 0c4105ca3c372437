"""What the files of a tokenizer tell agrees with the loaded one; where they do not tell, they say so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from data_fixtures import make_tokenizer
from test_costly_templates import COSTLY

from paceline.config.sections.model import ModelSection
from paceline.data.chat_template.template_texts import BUILTIN_TEMPLATES, builtin_template
from paceline.data.tokenizer.file_facts import ends_soon, most_tokens, same_files, unsettled
from paceline.data.tokenizer.load import load_tokenizer, vocab_size


@pytest.mark.parametrize("kind", COSTLY)
def test_no_costly_template_passes_for_a_plain_one(kind: str) -> None:
    assert not ends_soon(COSTLY[kind])


def test_templates_as_they_are_published_are_plain() -> None:
    assert all(ends_soon(builtin_template(name)) for name in BUILTIN_TEMPLATES)
    marked = (
        "{%- for m in messages %}{% generation %}{{ m['content'] + eos_token }}{% endgeneration -%}{% if"
        " loop.index0 % 2 %}x{% endif %}{% endfor %}"
    )
    assert (
        ends_soon(marked)
        and not ends_soon("{% for")
        and not ends_soon("{% for a in b recursive %}{% endfor %}")
    )


@pytest.mark.parametrize(
    "added",
    [{}, {"add_tokens": ["<new>"]}, {"add_special_tokens": ["<|a|>", "<|b|>"]}, {"add_tokens": ["<|end|>"]}],
)
def test_tokens_are_counted_as_the_loaded_tokenizer_does(added: dict[str, list[str]], tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "t")
    model = ModelSection(name_or_path=str(folder), **added)  # type: ignore[arg-type]
    assert most_tokens(folder, model) == vocab_size(load_tokenizer(model))


def test_what_files_do_not_tell_is_open(tmp_path: Path) -> None:
    folder = make_tokenizer(tmp_path / "t")
    model = ModelSection(name_or_path=str(folder), chat_template="plain")

    def reasons(chosen: ModelSection = model, formats: frozenset[str] = frozenset({"messages"})) -> list[str]:
        return unsettled(folder, chosen, formats, learns_answers=True)

    assert reasons() == [] and same_files(folder, folder) and not same_files(folder, tmp_path)
    llama = model.model_copy(update={"chat_template": "llama3"})
    assert reasons(llama) == ["<|eot_id|> in the chat template"]
    assert reasons(llama.model_copy(update={"add_special_tokens": ("<|eot_id|>",)})) == []
    said = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                **said,
                "tokenizer_class": "ByT5Tokenizer",
                "eos_token": None,
                "auto_map": {"AutoTokenizer": ["a.B", None]},
            }
        )
    )
    assert len(reasons()) == 3 and reasons(formats=frozenset({"text"})) == []
    (folder / "tokenizer.json").unlink()
    assert len(reasons()) == 4 and most_tokens(folder, model) is None
