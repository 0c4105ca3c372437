"""Rows of shown answers: each token's text and the probability with which it was sampled."""

from __future__ import annotations

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from paceline.algorithms.rewards.builtin import Sample
from paceline.algorithms.rewards.scoring import Scored
from paceline.generation.engine import Completion
from paceline.training.rollout.scored_rollout import LoggedCompletions, token_ends

TEXTS = ("the answer is 12", "  naïve – 漢字 and 🙂🙃\n\tend ", "", "é")


def tokenizer(metaspace: bool) -> PreTrainedTokenizerFast:
    """Return one that splits characters into bytes, or one whose tokens begin with their space."""
    own = Tokenizer(models.BPE(byte_fallback=metaspace, unk_token="<unk>" if metaspace else None))
    own.pre_tokenizer = (
        pre_tokenizers.Metaspace() if metaspace else pre_tokenizers.ByteLevel(add_prefix_space=False)
    )
    own.decoder = decoders.Metaspace() if metaspace else decoders.ByteLevel()
    alphabet = [] if metaspace else pre_tokenizers.ByteLevel.alphabet()
    corpus = [*TEXTS, "the end", "12 and 13"] if metaspace else ["the answer is 12", "the end and"]
    own.train_from_iterator(
        corpus,
        trainers.BpeTrainer(vocab_size=320, special_tokens=["<end>", "<unk>"], initial_alphabet=alphabet),
    )
    return PreTrainedTokenizerFast(tokenizer_object=own, eos_token="<end>", unk_token="<unk>")


@pytest.mark.parametrize("metaspace", [False, True], ids=["bytes", "metaspace"])
@pytest.mark.parametrize("text", TEXTS)
def test_the_tokens_cut_the_answer_into_their_own_texts(text: str, metaspace: bool) -> None:
    own = tokenizer(metaspace)
    tokens = [*own(text)["input_ids"], own.eos_token_id]
    answer = own.batch_decode([tokens], skip_special_tokens=True)[0]
    ends = token_ends(own, tokens, answer)
    assert len(ends) == len(tokens) and ends == sorted(ends) and ends[-1] == len(answer)
    # Independent: a token that is text by itself is that text at its place
    for begin, end, token in zip([0, *ends], ends, tokens, strict=False):
        alone = own.decode([token], skip_special_tokens=True)
        assert "\ufffd" in alone or begin == end or answer[begin:end].strip() == alone.strip()


def test_a_row_has_a_log_probability_for_each_token() -> None:
    own = tokenizer(metaspace=False)
    tokens = own(TEXTS[0])["input_ids"]
    logs = -torch.arange(len(tokens)) / 7
    shown = LoggedCompletions(
        [Sample("q", TEXTS[0], {"answer": 12})] * 2,
        Scored([1.0, float("nan")], {"exact": [1.0, 0.0]}, []),
        [Completion(tuple(tokens), logs, True)] * 2,
    )
    first, second = shown.rows(5, own)
    assert first["token_ends"] == token_ends(own, tokens, TEXTS[0]) and first["reward/exact"] == 1.0
    assert first["logprobs"] == [round(-i / 7, 3) for i in range(len(tokens))] and second["reward"] is None
    assert [row["answer"] for row in shown.rows(1, own)] == ["12"]


def test_long_answers_are_cut_and_other_texts_have_no_tokens() -> None:
    own = tokenizer(metaspace=False)
    tokens = own("the end " * 600)["input_ids"]
    ends = token_ends(own, tokens, ("the end " * 600)[:2000])
    assert ends[-1] == 2000 and len(ends) < len(tokens)
    assert token_ends(own, tokens, "another text") == [] == token_ends(own, tokens, "the end " * 601)
