"""Every token knows its characters, whatever the tokenizer and however the bytes fall."""

from itertools import pairwise

import pytest
from helpers.tiny import byte_level, sentence_piece, word_piece
from hypothesis import given, settings
from hypothesis import strategies as st

from probers.model.tokens import TextStream, decode, token_offsets
from probers.signals import words

TOKENIZERS = {"bytes": lambda: byte_level(every_byte=True), "pieces": sentence_piece}


def encode(tokenizer, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize(
    "text", [" Mira Tolven", "née 日本語 Who?", "🙂🙃 ok", "a\n\n b  c", "é", "1912, Jomholm. So"]
)
def test_a_token_spans_the_characters_its_bytes_are_in(name, text):
    tokenizer = TOKENIZERS[name]()
    context = encode(tokenizer, "The mill:")
    ids = encode(tokenizer, text)
    decoded, offsets = token_offsets(tokenizer, ids, context)
    assert decoded.strip() == text.strip()
    for index, (start, end) in enumerate(offsets):
        alone = decode(tokenizer, [context[-1], ids[index]])[len(decode(tokenizer, context[-1:])) :]
        if "�" not in alone:
            assert decoded[start:end] == alone
        else:  # some bytes of a character: all of it, and only it
            assert end - start >= 1
            assert any(ord(character) > 127 for character in decoded[start:end])
    assert {i for start, end in offsets for i in range(start, end)} == set(range(len(decoded)))
    assert [decoded[w.start : w.end] for w in words(decoded, offsets)] == text.split()


def test_bytes_of_one_character_share_its_span_and_special_tokens_have_none():
    tokenizer = byte_level(every_byte=True)
    ids = encode(tokenizer, "x🙂y")
    spans = ((0, 1), (1, 2), (1, 2), (1, 2), (1, 2), (2, 3))
    assert token_offsets(tokenizer, ids) == ("x🙂y", spans)
    assert token_offsets(tokenizer, ids[:-2]) == ("x�", ((0, 1), (1, 2), (1, 2), (1, 2)))  # never completed
    ids.insert(1, tokenizer.eos_token_id)
    assert token_offsets(tokenizer, ids) == ("x🙂y", (spans[0], (1, 1), *spans[1:]))


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
@settings(max_examples=120)
def test_any_tokens_at_all(name, data):
    tokenizer = TOKENIZERS[name]()
    token = st.integers(0, len(tokenizer) - 1)
    ids = data.draw(st.lists(token, max_size=14))
    context = encode(tokenizer, "The mill:")
    text, offsets = token_offsets(tokenizer, ids, context)
    assert decode(tokenizer, [*context, *ids]) == "The mill:" + text
    assert len(offsets) == len(ids)
    assert all(0 <= start <= end <= len(text) for start, end in offsets)
    assert all(a[0] <= b[0] and a[1] <= b[1] for a, b in pairwise(offsets))
    assert {i for start, end in offsets for i in range(start, end)} == set(range(len(text)))


def test_the_stream_shows_complete_characters_only():
    tokenizer = byte_level(every_byte=True)
    stream, seen = TextStream(tokenizer), []
    for token in encode(tokenizer, "a🙂 the"):
        stream.push(token)
        seen.append(stream.visible)
    assert seen[:5] == ["a", "a", "a", "a", "a🙂"] and seen[-1] == stream.full == "a🙂 the"
    assert (stream.settled(1), stream.settled(2)) == (1, 5)


def test_word_pieces_get_the_spaces_that_the_decoder_puts_in():
    tokenizer = word_piece()
    context = encode(tokenizer, "The mill")
    ids = encode(tokenizer, "Mira Tolven founded the mill in 1912.")
    pieces = tokenizer.convert_ids_to_tokens(ids)
    assert any(piece.startswith("##") for piece in pieces)  # or the test shows nothing
    text, offsets = token_offsets(tokenizer, ids, context)
    assert text == " Mira Tolven founded the mill in 1912 ."
    for piece, (start, end) in zip(pieces, offsets, strict=True):
        assert text[start:end] == (piece[2:] if piece.startswith("##") else f" {piece}")
    assert token_offsets(tokenizer, ids)[0] == text[1:]  # nothing before it: no space either
