"""Workload of the engine's benchmark: sizes, models, and prompts of a given number of tokens."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from probers import CausalLM
from probers.prompts import TESTBED_PROMPT
from probers.testbed.assets import load_corpus, load_questions

CONTEXT = 2048
SECTIONS = ("capture", "attention", "states", "peers", "prefix", "batching", "passages")


@dataclass(frozen=True, slots=True)
class Options:
    """Options of the command line.

    Attributes:
        repeats: rounds per cell; None chooses by the time of a round, at least 3 for the testbed and 2 for
            other models.
        answer_tokens: new tokens in the measurement of prefix reuse; batching uses half.
        dtype: number format of models; None leaves each its usual one.
        target: share of plain generation's speed that capture must reach; None goes by the model.
        second_pass: True to compare capture with all hidden states and a second pass for the attention too.
    """

    batches: tuple[int, ...] = (1, 8, 32)
    repeats: int | None = None
    prompt_tokens: int = 512
    new_tokens: int = 64
    only: tuple[str, ...] = SECTIONS
    questions: int = 64
    exemplar_tokens: int = 60
    answer_tokens: int = 32
    mixed: int = 128
    mixed_lengths: tuple[int, int] = (20, 400)
    slow: bool = False
    dtype: str | None = None
    target: float | None = None
    second_pass: bool = False


@dataclass(frozen=True, slots=True)
class Shape:
    """Shape of a Llama or a Qwen3 with random weights.

    Attributes:
        spread: standard deviation of the weights.
        cuda_only: True if too large for a CPU; it is then in bfloat16.
        groups: heads of keys and values; None for as many as of queries.
    """

    about: str
    layers: int
    width: int
    heads: int
    mlp: int
    vocab: int
    spread: float = 0.02
    cuda_only: bool = False
    kind: str = "llama"
    groups: int | None = None
    head: int | None = None
    tied: bool = False

    def config(self) -> Any:
        """Make the configuration of transformers."""
        more = {} if self.head is None else {"head_dim": self.head}
        return AutoConfig.for_model(
            self.kind, vocab_size=self.vocab, hidden_size=self.width, intermediate_size=self.mlp,
            num_hidden_layers=self.layers, num_attention_heads=self.heads,
            num_key_value_heads=self.groups or self.heads, max_position_embeddings=CONTEXT,
            initializer_range=self.spread, tie_word_embeddings=self.tied, bos_token_id=None,
            eos_token_id=None, **more,
        )  # fmt: skip


#: Shapes of models that others published, for the accelerator; ``tiny-..`` have their parts and no size.
LLAMA, QWEN = "llama-3.1-8b", "qwen3-1.7b"
SHAPES = {
    "tiny": Shape("random, 3 layers of width 32", 3, 32, 4, 48, 512, spread=0.3),
    "random": Shape("random, 12 layers of width 768, untied", 12, 768, 12, 2048, 32_000),
    "7b": Shape("random, 7B, bfloat16, untied", 32, 4096, 32, 11_008, 32_000, cuda_only=True),
    LLAMA: Shape(
        "random, shape of Llama-3.1-8B", 32, 4096, 32, 14_336, 128_256, cuda_only=True, groups=8,
    ),
    QWEN: Shape(
        "random, shape of Qwen3-1.7B", 28, 2048, 16, 6144, 151_936, cuda_only=True, kind="qwen3", groups=8,
        head=128, tied=True,
    ),
    f"tiny-{LLAMA}": Shape("random, 3 layers", 3, 32, 4, 48, 512, spread=0.3, groups=2),
    f"tiny-{QWEN}": Shape(
        "random, 3 layers", 3, 32, 4, 48, 512, spread=0.3, kind="qwen3", groups=2, head=16, tied=True
    ),
}  # fmt: skip
#: The pretrained model.
REAL = "smollm2"
_GIVEN = {REAL: "SmolLM2-135M, bfloat16", "testbed": "testbed"}
ABOUT = _GIVEN | {name: shape.about for name, shape in SHAPES.items()}


def build(name: str, device: torch.device, dtype: str | None = None) -> CausalLM:
    """Load the model called ``name``, which never ends a text by itself: all are as long as asked.

    Names other than those in ``ABOUT`` are folders and ids of the Hub.
    """
    if name in SHAPES:
        shape = SHAPES[name]
        dtype = dtype or ("bfloat16" if shape.cuda_only else "float32")
        model, tokenizer = _random(shape, device, getattr(torch, dtype)), byte_tokenizer(shape.vocab)
    else:
        dtype = dtype or ("float32" if name == "testbed" else "bfloat16")
        lm = CausalLM.from_pretrained(name, device=str(device), dtype=dtype)
        model, tokenizer = lm.model, lm.tokenizer
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    tokenizer.eos_token = None
    return CausalLM(model, tokenizer, name=name)


def about(name: str, options: Options) -> str:
    """Name a model as in tables."""
    return f"{name}, {options.dtype}" if options.dtype else ABOUT.get(name, name)


def _random(shape: Shape, device: torch.device, dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    with torch.device(device):  # made on its device: 7B parameters are slow to draw and to move
        model = AutoModelForCausalLM.from_config(shape.config(), dtype=dtype)
    return model.eval()


def byte_tokenizer(size: int) -> PreTrainedTokenizerFast:
    """Make a tokenizer with one token per byte; ids above, which only a model writes, are other words."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pieces = alphabet + [f"Ġ{number:x}" for number in range(size - len(alphabet))]
    bpe = Tokenizer(models.BPE(vocab={piece: i for i, piece in enumerate(pieces)}, merges=[]))
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=bpe, clean_up_tokenization_spaces=False)


@cache
def _sentences() -> tuple[str, ...]:
    return tuple(passage.text for passage in load_corpus())


def cut(tokenizer: Any, text: str, tokens: int) -> str:
    """Cut the first ``tokens`` tokens of ``text``, or a few fewer if that cuts a word badly."""
    spans = tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    for _, end in reversed(spans[:tokens]):
        if 0 < len(tokenizer(text[:end], verbose=False)["input_ids"]) <= tokens:
            return text[:end]
    raise ValueError(f"no beginning of the text has {tokens} tokens: {text[:40]!r}")


def texts(tokenizer: Any, lengths: Sequence[int], seed: int = 0) -> list[str]:
    """Make one text of encyclopedia articles per length in tokens; no two begin alike."""
    rng = random.Random(seed)
    found = []
    for length in lengths:
        text = ""
        while len(tokenizer(text, verbose=False)["input_ids"]) <= length:
            text += " ".join(rng.sample(_sentences(), 8)) + " "
        found.append(cut(tokenizer, text, length))
    return found


def long_prompts(tokenizer: Any, batch: int, tokens: int) -> list[str]:
    """Make ``batch`` prompts of ``tokens`` tokens, all but the first up to 1/16 shorter, for padding."""
    rng = random.Random(batch)
    return texts(tokenizer, [tokens, *(tokens - rng.randint(0, tokens // 16) for _ in range(batch - 1))])


def mixed_prompts(tokenizer: Any, count: int, shortest: int, longest: int) -> list[str]:
    """Make ``count`` prompts of log-normal length within the limits, in random order."""
    rng = random.Random(count)
    middle = (shortest * longest) ** 0.5
    lengths = [min(longest, max(shortest, round(rng.lognormvariate(0, 0.7) * middle))) for _ in range(count)]
    return texts(tokenizer, lengths)


def few_shot(tokenizer: Any, count: int, exemplars: int, tokens: int) -> tuple[str, list[str]]:
    """Make one text of ``exemplars`` answered questions of ``tokens`` tokens each, and prompts after it."""
    asked = load_questions()
    shown = []
    for question in asked[:exemplars]:
        answered = TESTBED_PROMPT.answer(question.rationale, question.answers[0])
        full = f"{TESTBED_PROMPT.question(question.question)} {answered} {_sentences()[len(shown)]}"
        shown.append(cut(tokenizer, full, tokens - 1) + "\n")
    prefix = "".join(shown)
    chosen = asked[exemplars : exemplars + count]
    return prefix, [prefix + TESTBED_PROMPT.question(cut(tokenizer, q.question, 20)) for q in chosen]
