"""Tiny tokenizers made like those of the most downloaded decoder families, trained on a few lines.

Each has its family's normaliser, pre-tokenizer, decoder and post-processor, which decide about spaces,
letters and the special tokens around a text.
"""

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

_LINES = [
    "Who founded the mill in Jomholm? Mira Tolven founded the mill in 1912, so it is a café of René Müller.",
    "The river Arl flows through the town. Its mouth is near Kelby, and it is 40 km long; the mayor's name.",
    "abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ 0123456789 .,:;!?'\"()-éèüößñçôåÉfi…½",
]
_SPLIT = r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+"
_METASPACE = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
)


def _around(tokenizer: Tokenizer, before: list[str], after: list[str]) -> None:
    """Put special tokens around every text."""
    tokenizer.add_special_tokens(list(dict.fromkeys([*before, *after])))
    if before or after:
        names = [(name, tokenizer.token_to_id(name)) for name in dict.fromkeys([*before, *after])]
        template = " ".join([*before, "$A", *after])
        tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=names)


def _byte_level(normalizer: Any = None, split: str | None = None, *, digits: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=split is None)
    parts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    parts += [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=330, initial_alphabet=alphabet, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    return tokenizer


def _byte_fallback(normalizer: Any, pre_tokenizer: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = _METASPACE
    special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=420, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(_LINES, trainer)
    made = json.loads(tokenizer.to_str())
    made["added_tokens"] = made["added_tokens"][:3]  # bytes are tokens like others
    return Tokenizer.from_str(json.dumps(made))


def _unigram(normalizer: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    trainer = trainers.UnigramTrainer(
        vocab_size=200, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    return tokenizer


def _word_piece(normalizer: Any) -> Tokenizer:
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    trainer = trainers.WordPieceTrainer(
        vocab_size=300, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    return tokenizer


def _end_of_word() -> Tokenizer:
    """GPT's and CLIP's: lower case, a mark at the end of each word, no spaces."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.BPEDecoder(suffix="</w>")
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<unk>"], end_of_word_suffix="</w>", show_progress=False
    )
    tokenizer.train_from_iterator(_LINES, trainer)
    return tokenizer


def _collapsing(*first: Any) -> Any:
    """Unigram families' normaliser: compatible forms, and no space twice (like nmt_nfkc of SentencePiece)."""
    return normalizers.Sequence([*first, normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])


_LLAMA = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
_FIRST = pre_tokenizers.Metaspace(prepend_scheme="first")

#: Of each family: tokenizer, special tokens before and after a text.
_MADE: dict[str, tuple[Callable[[], Tokenizer], list[str], list[str]]] = {
    "llama, internlm": (lambda: _byte_fallback(_LLAMA, None), ["<s>"], []),
    "llama add_eos": (lambda: _byte_fallback(_LLAMA, None), ["<s>"], ["</s>"]),
    "llama3": (lambda: _byte_level(split=_SPLIT), ["<|begin_of_text|>"], []),
    "llama3 base add_eos": (lambda: _byte_level(split=_SPLIT), ["<|begin_of_text|>"], ["<|end_of_text|>"]),
    "mistral": (lambda: _byte_fallback(None, _FIRST), ["<s>"], []),
    "gemma": (lambda: _byte_fallback(normalizers.Replace(" ", "▁"), None), ["<bos>"], []),
    "qwen": (lambda: _byte_level(normalizers.NFC(), _SPLIT), [], []),
    "qwen embedding": (lambda: _byte_level(normalizers.NFC(), _SPLIT), [], ["<|endoftext|>"]),
    "gpt2, phi, codegen": (_byte_level, [], []),
    "gpt-neox, olmo, stablelm, mpt": (lambda: _byte_level(normalizers.NFC()), [], []),
    "falcon": (lambda: _byte_level(digits=True), [], []),
    "deepseek": (lambda: _byte_level(split=_SPLIT, digits=True), ["<｜begin▁of▁sentence｜>"], []),
    "opt": (_byte_level, ["</s>"], []),
    "bert": (lambda: _word_piece(normalizers.BertNormalizer()), ["[CLS]"], ["[SEP]"]),
    "gpt1": (_end_of_word, [], []),
    "t5": (lambda: _unigram(_collapsing()), [], ["</s>"]),
    "xlnet": (
        lambda: _unigram(_collapsing(normalizers.Replace("``", '"'), normalizers.Replace("''", '"'))),
        [], ["<sep>", "<cls>"],
    ),
    "albert": (lambda: _unigram(_collapsing(normalizers.NFKD(), normalizers.StripAccents(),
                                            normalizers.Lowercase())), ["[CLS]"], ["[SEP]"]),
}  # fmt: skip
FAMILIES = tuple(_MADE)
#: Special tokens that each family puts after a text.
APPENDED = {family: tuple(after) for family, (_, _, after) in _MADE.items()}


@cache
def family_tokenizer(family: str) -> PreTrainedTokenizerFast:
    """Make the tokenizer of a family, with its end of text and, where it has one, its beginning."""
    make, before, after = _MADE[family]
    made = make()
    _around(made, before, after)
    known = made.get_vocab()
    end = next((name for name in [*after, "<|endoftext|>", "</s>"] if name in known), None)
    unknown = next((name for name in ("<unk>", "[UNK]") if name in known), None)
    return PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=next(iter(before), None), eos_token=end, unk_token=unknown,
        clean_up_tokenization_spaces=False,
    )  # fmt: skip
