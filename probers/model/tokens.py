"""Prompts and continuations as tokens, with the characters of each token.

Offsets come from decoding, never from a tokenizer's space marker, so that they hold for byte-level BPE (a
character's bytes may be spread over several tokens), SentencePiece (the first token's space is dropped
without context) and WordPiece (the decoder puts spaces in). Of a text whose letters or spaces the tokenizer's
normaliser changes, they are those of the original.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import Any, Literal

import numpy as np

from ..types import HALVES, AttentionRows, Feature, Generation, Needs, Span, StopReason, UserError
from ..words.text import Letter, letters_of, original_spans

log = logging.getLogger(__name__)

#: Prompt tokens decoded together with the first generated ones, so that their spaces survive.
CONTEXT = 4
_FAR_CONTEXT = 64
_BROKEN = "�"  # printed by decoders for bytes that are no character (yet)


class TextStream:
    """Text of a growing token sequence, one token at a time.

    Each step decodes the tokens since the last place where the text was known to be complete, and those just
    before it for context. ``context`` are tokens before the first one; they decide whether a leading space
    belongs to the text, which is ``text`` up to the last complete character. ``clean`` says that no token has
    changed the text before it; bytes without a character can, if contiguous ones are decoded as one.
    """

    def __init__(self, tokenizer: Any, context: Sequence[int] = ()) -> None:
        self._tokenizer, self._ids = tokenizer, list(context)[-CONTEXT:]
        self._anchor, self._read = 0, len(self._ids)
        self._base = decode(tokenizer, self._ids)
        self._tail = ""  # decoded, but its last character may lack bytes
        self._after: list[tuple[int, str]] = []  # per token: len(text) and tail once it was read
        self._settled, self.text, self.clean = 0, "", True

    def push(self, token: int) -> None:
        self._ids.append(token)
        window = decode(self._tokenizer, self._ids[self._anchor :])
        goes_on = window.startswith(self._base)
        if window.endswith(_BROKEN):
            self._tail = window[len(self._base) :] if goes_on else _BROKEN
        else:
            known = len(self._base) if goes_on else shared_start(self._base, window)
            if not goes_on:
                self.clean = False
                self.text = self.text[: max(0, len(self.text) - len(self._base) + known)]
            self.text += window[known:]
            self._tail = ""
            last = decode(self._tokenizer, self._ids[self._read :])
            if last:  # a token without text would not keep the space of the next one
                self._anchor, self._base = self._read, last
            else:
                self._base = window
            self._read = len(self._ids)
        self._after.append((len(self.text), self._tail))

    @property
    def visible(self) -> str:
        """The text so far, without a last character that still lacks bytes."""
        return self.text + self._tail.rstrip(_BROKEN)

    @property
    def full(self) -> str:
        """The text of all tokens read, including a broken character at the end."""
        return self.text + self._tail

    @property
    def whole(self) -> bool:
        """True where the last token completes a character."""
        return not self._tail

    def offsets(self, first: int = 0) -> tuple[Span, ...]:
        """List [start, end) of the tokens from ``first``, before which the text is ``whole``."""
        start = self._after[first - 1][0] if first else 0
        return _spans(self._after[first:], self.full, start)

    def settled(self, characters: int) -> int:
        """Count the leading tokens that certainly end at or before a position; the count never decreases."""
        while self._settled < len(self._after):
            stable, tail = self._after[self._settled]
            if stable + len(tail) > characters:
                break
            self._settled += 1
        return self._settled


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Decode tokens to text, without special ones and with spaces unchanged."""
    if not ids:
        return ""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # the same without the wrapper's overhead, which matters for every token
        return str(backend.decode(list(ids), skip_special_tokens=True))
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


@lru_cache(maxsize=4)
def _spelling(tokenizer: Any) -> tuple[frozenset[int], dict[str, int]]:
    """Return special tokens, and the byte of each character of a byte-level vocabulary (GPT-2), else {}."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", "")
    byte_level = bytes_to_unicode() if "ByteLevel" in str(decoder) else {}
    return frozenset(tokenizer.all_special_ids), {sign: byte for byte, sign in byte_level.items()}


def token_bytes(tokenizer: Any, token: int) -> bytes:
    """Return the bytes of one token as its vocabulary spells them, with a leading space; b"" without one."""
    piece, (special, byte_of) = tokenizer.convert_ids_to_tokens(token) or "", _spelling(tokenizer)
    if token in special:
        return piece.encode()
    if match := re.fullmatch(r"<0x([0-9A-F]{2})>", piece):  # SentencePiece's
        return bytes([int(match[1], 16)])
    if byte_of and all(c in byte_of for c in piece):
        return bytes(byte_of[c] for c in piece)
    return piece.replace("▁", " ").encode("utf-8", "surrogatepass")


def shown_bytes(spelled: bytes) -> str:
    r"""Show a token's bytes as text; those of no whole character as ``bytes:\xf0\x9f``, as OpenAI does."""
    try:
        return spelled.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in spelled)


def token_offsets(
    tokenizer: Any, ids: Sequence[int], context: Sequence[int] = ()
) -> tuple[str, tuple[Span, ...]]:
    """Decode ``ids`` and find the [start, end) characters of each, which together cover the text.

    Tokens that share a character each span all of it; a token without text (a special token) has an empty
    span. ``context`` are the tokens before (the prompt's), which decide whether a leading space belongs to
    the text.
    """
    stream = TextStream(tokenizer, context)
    for token in ids:
        stream.push(token)
    before = list(context)[-_FAR_CONTEXT:]
    base, text = decode(tokenizer, before), decode(tokenizer, [*before, *ids])
    if stream.clean and text == base + stream.full:
        return stream.full, stream.offsets()
    # Step-wise decoding and decoding at once differ (bytes that are no character): compare
    # the text of every prefix with the whole one, in time quadratic in the number of tokens.
    if not text.startswith(base):  # the first tokens destroy the prompt's last character
        before, base = [], ""
        text = decode(tokenizer, ids)
    text = text[len(base) :]
    prefixes = [decode(tokenizer, [*before, *ids[: i + 1]])[len(base) :] for i in range(len(ids))]
    return text, _spans([(0, prefix) for prefix in prefixes], text)


def _spans(read: Sequence[tuple[int, str]], text: str, start: int = 0) -> tuple[Span, ...]:
    """Compute spans from the decoded text of each prefix of the tokens: ``text[:stable] + tail``."""
    spans: list[Span] = []
    for stable, tail in read:
        known = max(start, stable + shared_start(tail, text[stable : stable + len(tail)]))
        if known - stable < len(tail):  # its last character is not complete yet
            spans.append((start, min(known + 1, len(text))))
        elif known == start and tail.endswith(_BROKEN):  # another byte of a character that stays incomplete
            spans.append((max(start - 1, 0), start))
        else:
            spans.append((start, known))
        start = known
    return tuple(spans)


def shared_start(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Count the leading items that two sequences share."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def read_offsets(
    tokenizer: Any, ids: Sequence[int], context: Sequence[int], source: str
) -> tuple[str, tuple[Span, ...]]:
    """Find the characters of tokens like :func:`token_offsets`, in the text that they were made of.

    Where the tokenizer has changed its characters (:func:`encode_continuation`), text and offsets are those
    of ``source``, up to the last token. "" as source is any text.
    """
    text, offsets = token_offsets(tokenizer, ids, context)
    if source in ("", text):
        return text, offsets
    complete = text.rstrip(_BROKEN)
    letters, written = _letters(tokenizer, source), letters_of(complete)
    same = [sign for sign, _ in letters[: len(written)]] == [sign for sign, _ in written]
    if same and not (source.startswith(complete) and len(written) < len(letters)):
        return original_spans(source, letters, text, offsets)
    return text, offsets


def _letters(tokenizer: Any, text: str) -> list[Letter]:
    """List the characters of a text as its tokenizer normalises them, but spaces, with their places in it."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normalizer is None:
        return letters_of(text)
    from tokenizers import PreTokenizedString, Regex

    each = Regex(r"[\s\S]")
    split = PreTokenizedString(text)
    split.normalize(normalizer.normalize)
    split.split(lambda _, piece: piece.split(each, "isolated"))
    pieces = split.get_splits("original", "char")
    return [(sign, start) for piece, (start, _), _ in pieces for sign, _ in letters_of(piece)]


@lru_cache(maxsize=8)
def tell_once(tokenizer: Any, message: str) -> None:
    """Log a message about a tokenizer the first time."""
    log.warning("note: %s", message)


def appended(tokenizer: Any) -> tuple[int, ...]:
    """Find the special tokens that a tokenizer puts after every text, such as an end marker or [SEP]."""
    for probe in chain("x1.", (decode(tokenizer, [token]) for token in range(len(tokenizer)))):
        kinds = {"verbose": False}, {"verbose": False, "add_special_tokens": False}
        whole, bare = (tuple(tokenizer(probe, **how)["input_ids"]) for how in kinds)
        places = [i for i in range(len(whole)) if bare and whole[i : i + len(bare)] == bare]
        if places:
            return whole[places[0] + len(bare) :]
    return ()


def marker_of(tokenizer: Any) -> str:
    """Name the special tokens that a tokenizer puts after every text."""
    return " ".join(tokenizer.convert_ids_to_tokens(list(appended(tokenizer))))


TooLong = Literal["error", "skip", "truncate_left"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A tokenized prompt, and its name in messages; ``source`` is the text to read after it, if known."""

    name: str
    text: str
    ids: tuple[int, ...]
    offsets: tuple[Span, ...]
    source: str = ""

    def continued(
        self, tokenizer: Any, ids: Sequence[int], scores: np.ndarray, *, stop: StopReason, needs: Needs,
        states: Mapping[Feature, np.ndarray] | None = None, attention: AttentionRows | None = None,
    ) -> Generation:  # fmt: skip
        """Build the generation of ``ids`` (n,); ``scores`` (2, n), or (4, n) with the top two of each."""
        text, offsets = read_offsets(tokenizer, ids, self.ids, self.source)
        return Generation(
            self.text, self.ids, self.offsets, tuple(ids), text, offsets,
            scores[0].copy(), scores[1].copy(), stop, needs, states or {}, attention,
            scores[2:].copy() if len(scores) > 2 else None,
        )  # fmt: skip


def encode_prompts(
    tokenizer: Any, prompts: Sequence[str], names: Sequence[str] | None = None, *, start: bool = False
) -> list[Prompt]:
    """Tokenize prompts like the tokenizer itself, BOS included (UserError: empty, or without tokens).

    A marker that the tokenizer puts after a text is left out: the model would continue another text. With
    ``start`` an empty prompt is the model's start token: BOS, or EOS where there is none.
    """
    called = [f"prompt {name}" for name in (range(len(prompts)) if names is None else names)]
    first = next((i for i in (tokenizer.bos_token_id, tokenizer.eos_token_id) if i is not None), None)
    for name, text in zip(called, prompts, strict=True):
        if not text and not (start and first is not None):
            raise UserError(f"{name} is empty; there is nothing to continue")
        _check_unicode(name, text)
    if not prompts:
        return []
    fast = bool(getattr(tokenizer, "is_fast", False))
    tokens = tokenizer(list(prompts), return_offsets_mapping=fast, verbose=False)
    encoded, marker = [], appended(tokenizer)
    if marker:
        tell_once(tokenizer, f"the tokenizer puts {marker_of(tokenizer)} after a text: prompts leave it out")
    for index, (name, text) in enumerate(zip(called, prompts, strict=True)):
        ids = without_marker(tokens["input_ids"][index], marker)
        if not (ids := ids if text or ids or first is None else (first,)):
            raise UserError(f"{name} has no tokens: {text!r}")
        spans = tokens["offset_mapping"][index][: len(ids)] if fast else token_offsets(tokenizer, ids)[1]
        spans = spans if text else [(0, 0)] * len(ids)
        encoded.append(Prompt(name, text, ids, tuple((int(a), int(b)) for a, b in spans)))
    return encoded


def _check_unicode(name: str, text: str) -> None:
    if HALVES.search(text):
        raise UserError(f"{name} holds half of a pair of surrogates: give valid Unicode")


def without_marker(ids: Sequence[int], marker: Sequence[int]) -> tuple[int, ...]:
    """Take the tokens of :func:`appended` off those of a text."""
    ends = bool(marker) and tuple(ids[-len(marker) :]) == tuple(marker)
    return tuple(ids[: len(ids) - len(marker)] if ends else ids)


def fit_context(
    tokenizer: Any, prompt: Prompt, more: int, context: int, policy: TooLong, what: str
) -> Prompt:
    """Fit the prompt into a context of ``context`` tokens together with ``more``, which is called ``what``.

    A prompt that is too long comes back without tokens by the policy "skip", and without its first ones,
    except special ones such as BOS, by "truncate_left". UserError with "error", or if nothing would be left.
    """
    room = context - more
    if len(prompt.ids) <= room:
        return prompt
    if policy == "skip":
        return replace(prompt, ids=(), offsets=())
    special = set(tokenizer.all_special_ids)
    head = next((i for i, token in enumerate(prompt.ids) if token not in special), len(prompt.ids))
    if policy == "truncate_left" and room > head:
        tail = len(prompt.ids) - (room - head)
        ids, offsets = prompt.ids, prompt.offsets
        return replace(prompt, ids=ids[:head] + ids[tail:], offsets=offsets[:head] + offsets[tail:])
    problem = f"{prompt.name} has {len(prompt.ids)} tokens, which with {what} exceeds the model's context of "
    remedy = "shorten it, ask for fewer tokens, or set model.on_too_long=skip or truncate_left"
    raise UserError(f"{problem}{context}; {remedy}", "too-long")


def encode_continuation(tokenizer: Any, prompt: Prompt, continuation: str | Sequence[int]) -> tuple[int, ...]:
    """Tokenize a continuation such that its tokens read as it when put after the prompt's.

    A text is tokenized on its own; where that reads differently after the prompt, without its leading space
    (SentencePiece puts one before any text by itself); then together with the prompt. Where none of these
    reads as the text, and one differs only by the tokenizer's own normaliser (composed or lower-case
    letters, removed accents, fewer spaces), it is taken with a note: that is how the model sees the text.
    UserError for an empty continuation, or one that no tokenization reproduces.
    """
    if not len(continuation):
        raise UserError(f"the continuation of {prompt.name} is empty; there is nothing to score")
    if not isinstance(continuation, str):
        return tuple(int(i) for i in continuation)
    _check_unicode(f"the continuation of {prompt.name}", continuation)
    before, normalised = decode(tokenizer, prompt.ids), list[tuple[tuple[int, ...], str]]()
    for ids in filter(None, _continuations(tokenizer, prompt, continuation)):
        if (read := decode(tokenizer, [*prompt.ids, *ids])) == before + continuation:
            return ids
        if read.startswith(before):
            normalised.append((ids, read[len(before) :]))
    letters = [sign for sign, _ in _letters(tokenizer, continuation)]
    for ids, read in normalised:
        if tokenizer.unk_token_id not in ids and [sign for sign, _ in letters_of(read)] == letters:
            why = "the tokenizer changes some texts (composed letters, accents, case or spaces)"
            tell_once(tokenizer, f"{why}: they are read as changed, their parts are those of the original")
            return ids
    problem = f"the continuation of {prompt.name} cannot be written in the model's tokens after it"
    raise UserError(f"{problem}: {continuation!r}; pass token ids instead")


def _continuations(tokenizer: Any, prompt: Prompt, text: str) -> Iterator[tuple[int, ...]]:
    """Tokenize a text in the ways that may read as it after a prompt."""
    for each in dict.fromkeys([text, text.removeprefix(" ")]):
        yield tuple(tokenizer(each, add_special_tokens=False, verbose=False)["input_ids"])
    together = tuple(tokenizer(prompt.text + text, verbose=False)["input_ids"])
    if together[: len(prompt.ids)] == prompt.ids:
        yield without_marker(together, appended(tokenizer))[len(prompt.ids) :]


def encode_answer(tokenizer: Any, prompt: str, answer: str, name: str) -> tuple[int, ...]:
    """Tokenize an answer without its end marker, after its prompt, which may be empty (UserError: none)."""
    (encoded,) = encode_prompts(tokenizer, [prompt], [name], start=True)
    return encode_continuation(tokenizer, encoded, without_end(tokenizer, answer))


def without_end(tokenizer: Any, text: str) -> str:
    """Remove the markers by which the model ended a text ("<|im_end|>")."""
    added = getattr(tokenizer, "added_tokens_decoder", {}).values()  # with those of no role: "<|eot_id|>"
    markers = {*tokenizer.all_special_tokens, *(str(token) for token in added if token.special)} - {""}
    longest_first = sorted(markers, key=len, reverse=True)
    while end := next((marker for marker in longest_first if text.rstrip().endswith(marker)), ""):
        text = text.rstrip().removesuffix(end)
    return text


def end_tokens(*owners: Any) -> frozenset[int]:
    """Collect the end tokens that a model's generation config and its tokenizer declare."""
    declared = [getattr(owner, "eos_token_id", None) for owner in owners]
    lists = (each if isinstance(each, list) else [each] for each in declared)
    tokens = frozenset(i for each in lists for i in each if i is not None)
    if wrong := [i for i in tokens if not isinstance(i, int)]:
        raise UserError(f"eos_token_id={wrong[0]!r} of the model's config must be a token id", "model")
    return tokens
