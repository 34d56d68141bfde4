"""Options: every value passes or is one sentence that names its key; presets pass; free text is not read."""

from typing import Any, Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from probers import options
from probers.cli.compose import COMMANDS, normalise, request, settings_of
from probers.cli.presets import methods, presets
from probers.cli.runs import RunFolder, taking_back
from probers.cli.settings import BatchSize, Device, Names
from probers.options import Count, Name, Natural, NotNegative, Positive, Seed, Share, check_value
from probers.types import UserError

often = settings(derandomize=True, max_examples=300)
SETTINGS = {command: settings_of(command) for command in COMMANDS}
KEYS = sorted({(command, key) for command, kind in SETTINGS.items() for key, _ in options._keys(kind)})
HINTS = {(command, key): hint for command, kind in SETTINGS.items() for key, hint in options._keys(kind)}
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def refusal(key: str, value: Any, annotation: Any) -> str | None:
    """What is said of a value; nothing where it passes."""
    try:
        check_value(key, value, annotation)
    except UserError as error:
        return str(error)
    return None


@often
@given(st.sampled_from(KEYS), PLAIN)
def test_every_value_passes_or_is_one_sentence_that_names_the_key(place, value):
    said = refusal(place[1], value, HINTS[place])
    if said is not None:
        assert said.startswith(f"{place[1]}=")
        assert said.isprintable() and len(said) < 600
        assert " must be " in said or " is too large: " in said


INF, NAN, LARGE = float("inf"), float("nan"), 2**32


@pytest.mark.parametrize(("annotation", "good", "bad"), [
    (Count, [1, 7], [0, -1, 1.0, True, "1"]), (Natural, [0, 7], [-1, 0.5, False]),
    (Seed, [0, LARGE - 1], [LARGE, -LARGE, -1]), (Positive, [0.1, 3], [0, 0.0, -1, INF, NAN, True, "3"]),
    (NotNegative, [0, 0.0, 2.5], [-0.1, INF, NAN]), (Share, [0, 1, 0.5], [1.01, -0.01, NAN, True]),
    (bool, [True, False], [0, 1, 1.0, "true", "yes", None, [], {}]),
    (Name, ["a", "a b", "../x", "é"], ["", "a\nb", "\x1b[31m", "\x7f", 1, True, None, ["a"], {"a": 1}]),
    (Names, ["a", ["a", "b"]], ["", [""], [1], {"a": "b"}, 3]),
    (str | None, ["", "a\nb", None], [1, True, [], {}]),
    (Literal["mean", "last"], ["mean"], ["Mean", "", None, 1, ["mean"]]),
    (BatchSize, ["auto", 8], ["Auto", 0, -1, 2.5, "8", None]),
    (Device, ["auto", "cpu", "cuda", "cuda:11", "xpu", "mps:0"], ["gpu", "cuda:", "cuda:1111", "cpu\n", 0]),
    (list[Count], [[], [1, 2]], [[0], [1.5], ["1"], 1, {"a": 1}, [[1]]]),
    (tuple[Share, Share], [[0, 1]], [[0], [0, 1, 1], [0, 2], "01"]),
    (dict[str, Count], [{}, {"a": 1}], [{"a": 0}, {"a": "1"}, [1], "a"]),
])  # fmt: skip
def test_an_annotation_takes_what_it_says_and_nothing_else(annotation, good, bad):
    for value in good:
        assert refusal("key", value, annotation) is None
    for value in bad:
        assert refusal("key", value, annotation) is not None


@pytest.mark.parametrize("command", SETTINGS)
def test_every_default_and_every_preset_passes(command):
    request(command, [])
    for preset in presets(command):
        first_method = methods(command, preset)[:1]
        request(command, [f"experiment={preset}", *(f"method={method}" for method in first_method)])


REFERENCES = ["Say ${oc.env:HOME}", "${question}", "a ${"]


@pytest.mark.parametrize("text", [
    *REFERENCES, r"\\${x}\\", "1", "null", "[1,2]", "{a: 1}",
    "Who directed 'It'?", "back\\slash'", "a=b, {c} [d]", '"', "Was it 5'3\"?", "tab\there", "}{", "#",
])  # fmt: skip
def test_free_text_is_not_read(text, tmp_path, monkeypatch):
    """A reference is none in the options of parts either, nor in the file of what was typed."""
    monkeypatch.setenv("HOME", "/secret")
    assert request("rag", normalise("rag", [f"question={text}"])).question == text
    if text in REFERENCES:
        typed = ["retriever=dense", f"retriever.query_prefix={text}", f"prompt.task={text}"]
        made = request("rag", normalise("rag", typed))
        assert made.retriever.options["query_prefix"] == made.prompt.make().task == text
        with taking_back():
            RunFolder(tmp_path / "out", "rag", made.record).claim()
            assert yaml.safe_load((tmp_path / "out/config.yaml").read_text())["prompt"]["task"] == text


def test_what_comes_from_the_environment_is_used_and_not_written(tmp_path, monkeypatch):
    monkeypatch.setenv("PLACE", "hidden-place")
    typed = ["prober=${oc.env:PLACE}", "retriever=elasticsearch", "retriever.url=http://${oc.env:PLACE}"]
    made = request("rag", normalise("rag", ["question=Who?", *typed]))
    assert made.prober == "hidden-place" and made.retriever.options["url"] == "http://hidden-place"
    with taking_back():
        folder = RunFolder(tmp_path / "out", "rag", made.record)
        folder.claim()
        folder.finish({})
        written = [f.read_text() for f in (tmp_path / "out").iterdir() if f.suffix in (".yaml", ".json")]
    assert len(written) >= 2
    assert not any("hidden-place" in text for text in written)
    assert any("${oc.env:PLACE}" in text for text in written)
