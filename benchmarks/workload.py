"""Workload of the benchmarks: models, prompts of a given number of tokens, and feature stores."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

from probers import CausalLM, FeatureStore
from probers.store.spec import FeatureSpec, ModelSpec
from probers.testbed.assets import load_corpus

CONTEXT = 2048


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
#: Pretrained model.
REAL = "smollm2"


def build(name: str, device: torch.device, dtype: str | None = None) -> CausalLM:
    """Load the model called ``name``, which never ends a text by itself: all are as long as asked.

    Names other than those in ``SHAPES`` are those of :meth:`probers.CausalLM.from_pretrained`.
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
    lines = []
    for length in lengths:
        text = ""
        while len(tokenizer(text, verbose=False)["input_ids"]) <= length:
            text += " ".join(rng.sample(_sentences(), 8)) + " "
        lines.append(cut(tokenizer, text, length))
    return lines


def long_prompts(tokenizer: Any, batch: int, tokens: int) -> list[str]:
    """Make ``batch`` prompts of ``tokens`` tokens, all but the first up to 1/16 shorter, for padding."""
    rng = random.Random(batch)
    return texts(tokenizer, [tokens, *(tokens - rng.randint(0, tokens // 16) for _ in range(batch - 1))])


#: Rows of a shard of :func:`synthetic`.
SHARD = 512


def synthetic(folder: Path, examples: int, layers: int, width: int) -> Path:
    """Make a feature store with a signal that grows towards the middle layer, unless it exists."""
    path = folder / f"{examples}x{layers}x{width}"
    model = ModelSpec("benchmark", "0", layers, width, "float32")
    spec = FeatureSpec(model, tuple(range(1, layers + 1)), width)
    made = FeatureStore.create(path, [spec], config={}, shards=-(-examples // SHARD))
    rng = np.random.default_rng(0)
    directions = rng.standard_normal((layers, width), dtype=np.float32) / np.float32(width**0.5)
    middle = (layers + 1) / 2
    strength = 2 - 2 * np.abs(np.arange(1, layers + 1, dtype=np.float32) - np.float32(middle)) / layers
    for index in made.missing:
        rng = np.random.default_rng((1, index))
        numbers = range(index * SHARD, min(examples, (index + 1) * SHARD))
        correct = rng.integers(0, 2, len(numbers))
        states = rng.standard_normal((len(numbers), layers, width), dtype=np.float32)
        sign = (2 * correct - 1).astype(np.float32)[:, None, None]
        states += sign * (strength[:, None] * directions)
        made.write_shard(index, [example(n, int(c)) for n, c in zip(numbers, correct, strict=True)], states)
    made.finish()
    return path


def example(number: int, correct: int) -> dict[str, Any]:
    """Make a row; two rows make a group, and eight of ten groups are for training."""
    split = (*["train"] * 8, "validation", "test")[number // 2 % 10]
    return {"id": f"q{number}", "group": f"g{number // 2}", "split": split, "correct": correct}
