"""Which characters of the text each token wrote.

Offsets come from decoding, never from a tokenizer's space marker, so that they hold
for byte-level BPE (a character's bytes may be spread over several tokens),
SentencePiece (the first token's space is dropped without context) and WordPiece
(the decoder puts spaces in).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .types import RunError

Span = tuple[int, int]

#: Prompt tokens decoded along with the first generated ones, so that their spaces survive.
CONTEXT = 4
_BROKEN = "�"  # what decoders print for bytes that are no character (yet)


class TextStream:
    """Text of a growing token sequence, one token at a time.

    Each step decodes a few tokens, not the whole sequence: those since the last place
    where the text was known to be complete, and those just before it for context.

    Attributes:
        text: the part of the text that no later token can change.

    Args:
        context: tokens before the first one; they decide whether a leading space
            belongs to the text.
        whole: decode from the very beginning at each step: right for any tokenizer
            whose decoding is incremental at all, at quadratic cost.
    """

    def __init__(self, tokenizer: Any, context: Sequence[int] = (), *, whole: bool = False) -> None:
        self._tokenizer = tokenizer
        self._context = tuple(context)
        self._begin(whole)

    def _begin(self, whole: bool) -> None:
        self._whole = whole
        self._ids = list(self._context if whole else self._context[-CONTEXT:])
        self._given = len(self._ids)
        self._anchor, self._read = 0, self._given
        self._base = decode(self._tokenizer, self._ids)
        self.text = ""
        self._tail = ""  # decoded, but its last character may lack bytes
        self._after: list[tuple[int, str]] = []  # per token: len(text) and tail once it was read
        self._settled = 0

    def push(self, token: int) -> None:
        """Read one more token.

        Raises:
            RunError: the text of the tokens does not begin with the text of those before.
        """
        self._ids.append(token)
        window = decode(self._tokenizer, self._ids[self._anchor :])
        if not window.startswith(self._base):
            if self._whole:
                raise RunError(f"decoding is not incremental: {window!r} does not go on from {self._base!r}")
            tokens = self._ids[self._given :]
            self._begin(whole=True)
            for earlier in tokens:
                self.push(earlier)
            return
        self._tail = window[len(self._base) :]
        if not self._tail.endswith(_BROKEN):
            self.text += self._tail
            self._tail = ""
            if self._whole:
                self._base = window
            else:
                self._anchor, self._read = self._read, len(self._ids)
                self._base = decode(self._tokenizer, self._ids[self._anchor : self._read])
        self._after.append((len(self.text), self._tail))

    def settled(self, characters: int) -> int:
        """How many leading tokens are sure to end at or before a position (never goes back)."""
        while self._settled < len(self._after):
            stable, tail = self._after[self._settled]
            if stable + len(tail) > characters:
                break
            self._settled += 1
        return self._settled

    @property
    def visible(self) -> str:
        """The text so far without a character whose bytes are not all there."""
        return self.text + self._tail.rstrip(_BROKEN)

    @property
    def full(self) -> str:
        """The text of all tokens read, a broken character at the end included."""
        return self.text + self._tail

    def offsets(self) -> tuple[Span, ...]:
        """[start, end) in ``full`` of every token.

        Tokens that share a character each span all of it; a token without text (a
        special token) has an empty span at its place.
        """
        full = self.full
        spans: list[Span] = []
        start = 0
        for stable, tail in self._after:
            known = stable
            while known - stable < len(tail) and known < len(full) and tail[known - stable] == full[known]:
                known += 1
            partial = known - stable < len(tail)
            if partial:
                spans.append((start, min(known + 1, len(full))))
            elif known == start and tail:  # more bytes of a character that never became complete
                spans.append((max(start - 1, 0), start))
            else:
                spans.append((start, known))
            start = known
        return tuple(spans)


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Text of tokens, special ones left out and spaces as they are."""
    if not ids:
        return ""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:  # the same without the wrapper's overhead, which counts per token
        return str(backend.decode(list(ids), skip_special_tokens=True))
    return str(tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False))


def token_offsets(
    tokenizer: Any, ids: Sequence[int], context: Sequence[int] = ()
) -> tuple[str, tuple[Span, ...]]:
    """Text of ``ids`` and the [start, end) characters of each.

    Args:
        context: tokens before ``ids`` (the prompt's); they decide whether a leading
            space belongs to the text, and are not part of it.

    Raises:
        RunError: the tokenizer's text of a sequence does not begin with its text of a
            part of it, so that no alignment exists.
    """
    text = decode(tokenizer, [*context, *ids])
    for whole in (False, True):
        stream = TextStream(tokenizer, context, whole=whole)
        for token in ids:
            stream.push(token)
        if text.endswith(stream.full):
            return stream.full, stream.offsets()
    raise RunError(f"tokens do not align with their text: {stream.full!r} is not the end of {text!r}")
