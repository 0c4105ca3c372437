"""Makes what the example YAMLs train on: a small instruction data set and a small tokenizer, all by
arithmetic, nothing downloaded.

    python examples/make_examples.py            writes examples/data/*.json* and examples/tokenizer/*
    python examples/make_examples.py --check    exits 1 when the data files in the checkout differ from what
    this program makes

The data is ours to give away: every row is made below. Held-out questions use numbers and words that the
training rows never combine.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import rows_to_judge

HERE = Path(__file__).resolve().parent
WORDS = (  # noqa: SIM905 - a list of a hundred strings reads worse
    "amber anchor apple autumn badger basket beacon birch breeze bridge butter candle canyon carpet castle"
    " cedar cherry cloud clover copper coral cotton crane crystal dawn desert dolphin eagle ember falcon"
    " feather fern field flame forest fossil fountain garden ginger glacier granite harbor hazel heron honey"
    " horizon island ivory jasmine jungle kettle lantern lemon lilac lizard maple marble meadow melon mirror"
    " moss mountain nectar oasis ocean olive orchid otter panther pebble pepper pine planet plum prairie"
    " quartz rabbit raven reef ribbon river robin saddle saffron salmon shadow silver sparrow spruce summit"
    " sunset thistle thunder timber tulip turtle valley velvet violet walnut willow winter wolf"
).split()
COLOURS = ("red", "green", "blue", "white", "black", "yellow")
TRAIN_ROWS = 400
EVAL_ROWS = 40
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{%"
    " endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
Row = tuple[str, str, str]  # instruction, input, output


def addition(rng: random.Random) -> Row:
    """A sum of two numbers below 100."""
    a, b = rng.randrange(100), rng.randrange(100)
    return f"What is {a} plus {b}?", "", f"{a} plus {b} is {a + b}."


def longest(rng: random.Random) -> Row:
    """The longest of three words of different lengths."""
    while True:
        words = rng.sample(WORDS, 3)
        lengths = [len(word) for word in words]
        if lengths.count(max(lengths)) == 1:
            break
    return (
        "Which of these words is the longest?",
        ", ".join(words),
        f"The longest word is {max(words, key=len)}.",
    )


def alphabetical(rng: random.Random) -> Row:
    """Four words put in alphabetical order."""
    words = rng.sample(WORDS, 4)
    return "Put these words in alphabetical order.", " ".join(words), " ".join(sorted(words))


def spelling(rng: random.Random) -> Row:
    """A word spelt letter by letter."""
    word = rng.choice(WORDS)
    return f"Spell the word {word}.", "", "-".join(word)


def painting(rng: random.Random) -> Row:
    """Reading a fact back from a short text."""
    words, colours = rng.sample(WORDS, 3), rng.sample(COLOURS, 3)
    facts = " ".join(f"The {word} is {colour}." for word, colour in zip(words, colours, strict=True))
    i = rng.randrange(3)
    return f"What colour is the {words[i]}?", facts, f"The {words[i]} is {colours[i]}."


MAKERS: tuple[Callable[[random.Random], Row], ...] = (addition, longest, alphabetical, spelling, painting)


def make_rows() -> tuple[list[Row], list[Row]]:
    """Training and held-out rows: no question of one is in the other."""
    rng = random.Random(20240229)
    rows: dict[tuple[str, str], str] = {}
    while len(rows) < TRAIN_ROWS + EVAL_ROWS:
        instruction, context, output = MAKERS[len(rows) % len(MAKERS)](rng)
        rows.setdefault((instruction, context), output)
    flat = [(instruction, context, output) for (instruction, context), output in rows.items()]
    return flat[:TRAIN_ROWS], flat[TRAIN_ROWS:]


def data_files() -> dict[Path, str]:
    """The text of every data file: training rows as Alpaca JSON, held-out rows as OpenAI messages in JSON
    lines, and the rows of ``rows_to_judge``.
    """
    train, held_out = make_rows()
    alpaca = [{"instruction": i, "input": c, "output": o} for i, c, o in train]
    messages = [
        {
            "messages": [
                {"role": "user", "content": f"{i}\n{c}" if c else i},
                {"role": "assistant", "content": o},
            ]
        }
        for i, c, o in held_out
    ]
    return {
        HERE / "data" / "train.json": "[\n" + ",\n".join(json.dumps(row) for row in alpaca) + "\n]\n",
        HERE / "data" / "eval.jsonl": lines(messages),
        HERE / "data" / "pairs.jsonl": lines(rows_to_judge.pairs(train[:200])),
        HERE / "data" / "feedback.jsonl": lines(rows_to_judge.feedback(train[:200])),
        HERE / "data" / "prompts.jsonl": lines(rows_to_judge.prompts(train[200:])),
        HERE / "data" / "reviews.jsonl": lines(rows_to_judge.reviews()),
    }


def lines(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_tokenizer(folder: Path) -> None:
    """A byte-level BPE of 768 tokens with the ChatML template, in the files that Transformers reads."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=768,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(("\n".join(row) for row in make_rows()[0]), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=1024
    )
    fast.chat_template = CHAT_TEMPLATE
    fast.save_pretrained(folder)


def main() -> int:
    """Writes the files, or compares them with ``--check``."""
    if "--check" in sys.argv[1:]:
        stale = [
            str(p)
            for p, text in data_files().items()
            if not p.exists() or p.read_text(encoding="utf-8") != text
        ]
        print("differs: " + ", ".join(stale) if stale else "examples/data is what this program makes")
        return 1 if stale else 0
    for path, text in data_files().items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    write_tokenizer(HERE / "tokenizer")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
