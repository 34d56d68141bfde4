"""Prompt templates, which make text of a question, its passages, an answer so far or an article.

One template serves datagen and the RAG loop, and its hash is part of the FeatureSpec.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import InitVar, asdict, dataclass, field, fields, replace
from datetime import date
from pathlib import Path
from string import Formatter
from typing import Any

from .files import digest, given_file, read_text
from .options import shown
from .types import EndToken, UserError, first_line

#: Names that forms may have in braces.
_FORMS = {"passage": ("i", "text"), "question_form": ("question",), "article": ("title",)}
#: Placeholders for a text and its answer within a chat template; no real text contains them.
_PLACE, _ANSWER = "\ue000", "\ue001"
#: Fields of a template that come from the model to which it is bound.
_BOUND = ("_around", "turn_ends")
#: Shorter text behind every answer, as a full stop, may stand in an answer too.
_LEAST_END = 3


@dataclass(frozen=True, slots=True)
class PromptTemplate:
    """Few-shot question prompt with optional passages, and the prompt for continuing an article.

    A question's prompt is ``exemplars``, then the passages (if any) under ``context``, one ``passage`` line
    each, and ``task``, then ``question``; the model continues with a rationale and ``answer_cue`` followed by
    the answer. An article's prompt is ``article``, then the article up to where the model continues.

    Attributes:
        name: its name, in records and messages.
        exemplars: text put before everything else, shared by all prompts of a run.
        exemplars_file: file whose unchanged text replaces ``exemplars``.
        context: header of the passages.
        passage: one passage, with ``{i}`` (from 1) and ``{text}``.
        task: what to do with the passages, after them.
        question_form: the question with ``{question}``, up to where the model continues.
        answer_cue: words that announce the final answer; "" if it is the first entity.
        stop: strings that end an answer.
        article: instruction before an article, with ``{title}``; "" continues it unchanged.
        chat: put it all through the chat template of the tokenizer given to :meth:`bind`: questions and
            instructions as the user's message, the text to continue as the beginning of its answer.
        turn_ends: token or text that ends an answer by the chat template to which this is bound.
    """

    name: str = "testbed"
    exemplars: str = ""
    context: str = "Context:\n"
    passage: str = "[{i}] {text}\n"
    task: str = ""
    question_form: str = "Question: {question}\nAnswer:"
    answer_cue: str = "So the answer is"
    stop: tuple[str, ...] = ("\n",)
    article: str = ""
    chat: bool = False
    exemplars_file: InitVar[str | None] = None
    _around: tuple[str, str] | None = field(default=None, init=False, repr=False, compare=False)
    turn_ends: tuple[str | EndToken, ...] = field(default=(), init=False, repr=False, compare=False)

    def __post_init__(self, exemplars_file: str | None) -> None:
        object.__setattr__(self, "stop", tuple(self.stop))
        if exemplars_file is not None:
            file = given_file("prompt.exemplars_file", exemplars_file, "a text with the exemplars")
            try:
                object.__setattr__(self, "exemplars", read_text(file))
            except ValueError as error:
                raise UserError(f"prompt.exemplars_file={file} {error}", "bad-file") from error
        for name, names in _FORMS.items():
            _check_form(name, getattr(self, name), names)

    def bind(self, tokenizer: Any) -> PromptTemplate:
        """Bind to the model of a tokenizer, None where it is out of reach, as behind a URL.

        prompt=auto becomes the model's own form: its chat template, or the plain form where it has none or
        is out of reach; the testbed's for the testbed. A chat prompt is put through the chat template
        (UserError if there is none). Any other is returned as it is.
        """
        if self.name == AUTO:
            values = {f.name: getattr(self, f.name) for f in fields(self) if f.init}
            changed = {k: v for k, v in values.items() if v != getattr(AUTO_PROMPT, k)}
            form = CHAT_PROMPT if getattr(tokenizer, "chat_template", None) else PLAIN_PROMPT
            return replace(TESTBED_PROMPT if of_testbed(tokenizer) else form, **changed).bind(tokenizer)
        if not self.chat:
            return self
        bound = replace(self)
        object.__setattr__(bound, "_around", _chat_frame(tokenizer, self.name))
        object.__setattr__(bound, "turn_ends", turn_ends(tokenizer))
        return bound

    def question(self, question: str, passages: Sequence[str] = (), *, partial: str = "") -> str:
        """Format a question with passage texts, best first; the model continues the answer ``partial``."""
        shown = "".join(self.passage.format(i=i, text=text) for i, text in enumerate(passages, 1))
        context = self.context + shown + self.task if passages else ""
        before, between = self._frame
        form = self.question_form.format(question=question)
        return before + self.exemplars + context + form + between + partial

    def question_span(self, prompt: str, question: str, partial: str = "") -> tuple[int, int]:
        """Locate ``question`` in the ``prompt`` made by :meth:`question`, [start, end)."""
        after = self.question_form.partition("{question}")[2].format()
        end = len(prompt) - len(after) - len(self._frame[1]) - len(partial)
        return end - len(question), end

    def continuation(self, title: str, text: str) -> str:
        """Format the beginning ``text`` of the article ``title``, to be continued."""
        instruction = self.article.format(title=title)
        if self.chat:
            return instruction.join(self._frame) + text
        return f"{instruction} {text}" if instruction else text

    def answer(self, rationale: str, answer: str) -> str:
        """Format a full answer, without the leading space."""
        return f"{rationale} {self.answer_cue} {answer}."

    def bare(self, lm: Any) -> PromptTemplate:
        """Make the template of a stand-alone text, a user's message if this is a chat prompt."""
        form = PromptTemplate("bare", question_form="{question}", chat=self.chat)
        return form.bind(lm.tokenizer) if self.chat else form

    @property
    def ends(self) -> tuple[str | EndToken, ...]:
        """Ends of an answer besides the model's end tokens: ``stop``, and the end of a turn of the chat."""
        return (*self.stop, *self.turn_ends)

    @property
    def prefix(self) -> str:
        """Common beginning of all question prompts."""
        return self._frame[0] + self.exemplars

    @property
    def fingerprint(self) -> str:
        """Hash of every field: two runs compare only if it is the same."""
        return digest(repr(sorted(item for item in asdict(self).items() if item[0] not in _BOUND)), 12)

    @property
    def _frame(self) -> tuple[str, str]:
        """Text before a message, and between it and the answer."""
        if not self.chat:
            return "", ""
        if self._around is None:
            raise ValueError(f"the chat prompt {self.name} is not bound to a tokenizer: call bind first")
        return self._around


def _check_form(name: str, form: str, known: Sequence[str]) -> None:
    try:
        parts = [part for part in Formatter().parse(form) if part[1] is not None]
    except ValueError:
        parts = [("", None, "", "")]
    if any(name_ not in known or spec or conversion for _, name_, spec, conversion in parts):
        names = " and ".join(f"{{{each}}}" for each in known)
        problem = f"prompt.{name}={form!r} cannot be filled in: braces may hold {names} alone"
        raise UserError(f"{problem}; write {{{{ and }}}} for braces that are text")


def _chat_frame(tokenizer: Any, name: str) -> tuple[str, str]:
    """Return a chat template's text before a user's message, and between it and the answer."""
    if tokenizer is None:
        message = f"prompt={name} is a chat prompt, and a model behind a URL does not hand out its tokenizer"
        raise UserError(f"{message}: choose another prompt", "unsupported")
    text = chat_text(tokenizer, [{"role": "user", "content": _PLACE}], f"prompt={name} is a chat prompt")
    before, place, between = text.partition(_PLACE)
    if not place:
        raise UserError(f"prompt={name}: the tokenizer's chat template leaves out the message", "model")
    return before, between


def chat_text(tokenizer: Any, messages: Sequence[Mapping[str, Any]], what: str, **more: Any) -> str:
    """Format a chat up to where the model answers, without the BOS that the tokenizer adds itself.

    ``messages`` have ``role`` and ``content``; ``what`` names the template's user in errors, and ``more`` are
    its variables, such as tools. UserError: there is no chat template, or it refuses the messages.
    """
    from jinja2 import TemplateError  # loads slowly

    try:
        turns = _known_turns(messages, _template(tokenizer, more))
        text = tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True, **more)
    except ValueError as error:
        raise UserError(f"{what}, and {error}", "model") from error
    except (TemplateError, TypeError) as error:  # TypeError: values that the template cannot use
        raise UserError(f"{what}, and the chat template refuses it: {first_line(error)}", "model") from error
    bos = tokenizer.bos_token
    if bos and tokenizer("x", verbose=False)["input_ids"][:1] == [tokenizer.bos_token_id]:
        return text.removeprefix(bos)
    return text


def turns_of(messages: Any) -> list[dict[str, Any]]:
    """Read the messages of a chat, in the forms of OpenAI's API; ValueError names a malformed one.

    Content may be a list of text parts, and null beside calls of tools, whose arguments may be JSON in a
    string. Fields that are null are left out.
    """
    turns = []
    for number, message in enumerate(messages):
        where = f"messages[{number}]"
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ValueError(f'{where} must be {{"role": .., "content": ..}}, found {shown(message)}')
        content, calls = message.get("content"), message.get("tool_calls") or ()
        if isinstance(content, (list, tuple)):
            content = "".join(_part(part, where) for part in content)
        if content is None and calls:
            content = ""
        if not isinstance(content, str):
            raise ValueError(f"{where}.content must be text or text parts, found {shown(content)}")
        rest = {name: value for name, value in message.items() if value is not None and name != "tool_calls"}
        called = {"tool_calls": [_call(call, where) for call in calls]} if calls else {}
        turns.append({**rest, "content": content, **called})
    return turns


def _part(part: Any, where: str) -> str:
    text = part.get("text") if isinstance(part, Mapping) and part.get("type", "text") == "text" else part
    if not isinstance(text, str):
        raise ValueError(f"{where}: only parts of type text can be read, found {shown(part)}")
    return text


def _call(call: Any, where: str) -> dict[str, Any]:
    """Read a call of a tool; templates want its arguments as an object."""
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise ValueError(f"{where}: a call of a tool needs function.name, found {shown(call)}")
    arguments = function.get("arguments") or {}
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        arguments = None
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{where}: arguments of a call must be a JSON object, found {shown(function)}")
    return {**call, "function": {**function, "arguments": dict(arguments)}}


def _known_turns(messages: Sequence[Mapping[str, Any]], template: Any) -> list[dict[str, Any]]:
    """Return messages in roles that a chat template knows (ValueError: malformed, or tools that it omits)."""
    turns = turns_of(messages)
    if "tool" not in str(template) and any(t["role"] == "tool" or "tool_calls" in t for t in turns):
        raise ValueError("the model's chat template knows no tools: leave out the messages with their calls")
    known = "developer" in str(template)
    return [t | {"role": "system"} if t["role"] == "developer" and not known else t for t in turns]


def _template(tokenizer: Any, more: Mapping[str, Any]) -> Any:
    """Find the chat template (ValueError: none, or several of which it is open which is meant)."""
    template = getattr(tokenizer, "chat_template", None)
    if not template:
        choose = "choose a prompt without chat, or a model that was tuned for it"
        raise ValueError(f"the model's tokenizer has no chat template: {choose}")
    meant = {"default", "tool_use"} if more.get("tools") else {"default"}
    if isinstance(template, Mapping) and not meant & template.keys():
        named = f"the model has the chat templates {', '.join(sorted(template))}, none called default"
        raise ValueError(f"{named}: choose one with model.chat_template")
    return template


def turn_ends(tokenizer: Any) -> tuple[str | EndToken, ...]:
    """Find what a chat template writes behind an answer: a token, or text, by which the answer has ended.

    It need not be among the model's end tokens: fine-tunes often keep those of their base. () without a
    template, or where nothing but space is behind an answer.
    """
    if not getattr(tokenizer, "chat_template", None):
        return ()
    chat = [{"role": "user", "content": _PLACE}, {"role": "assistant", "content": _ANSWER}]
    # First behind the last answer: within a chat, a mark may be one that an answer holds too (gpt-oss).
    tail = _behind(tokenizer, chat) or _behind(tokenizer, [*chat, chat[0]])
    marks = {str(token): i for i, token in getattr(tokenizer, "added_tokens_decoder", {}).items()}
    if first := max((mark for mark in marks if tail.lstrip().startswith(mark)), key=len, default=""):
        return (EndToken(marks[first]),)
    text = tail[: min((tail.find(mark) for mark in marks if mark in tail), default=len(tail))].rstrip()
    return (text,) if len(text.strip()) >= _LEAST_END else ()


def _behind(tokenizer: Any, messages: Sequence[Mapping[str, str]]) -> str:
    """Return a chat template's text between an answer and the next message; "" if it is only space."""
    from jinja2 import TemplateError

    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    except (TemplateError, TypeError, ValueError):  # it cannot be asked: no such roles, or several templates
        return ""
    tail = text.rpartition(_ANSWER)[2].partition(_PLACE)[0]
    return tail if _ANSWER in text and tail.strip() else ""


#: The call by which chat templates ask for the date (Llama 3.2, Granite).
_TODAY = re.compile(r"""strftime_now\(\s*(["'])(.*?)\1\s*\)""")


def fix_date(tokenizer: Any, day: date) -> bool:
    """Fix the date that a tokenizer's chat template gives as today; tell whether it gives one."""
    given = getattr(tokenizer, "chat_template", None)
    templates = given if isinstance(given, Mapping) else {"default": given or ""}
    if not any(map(_TODAY.search, templates.values())):
        return False
    dated = {k: _TODAY.sub(lambda call: json.dumps(day.strftime(call[2])), v) for k, v in templates.items()}
    tokenizer.chat_template = dated if isinstance(given, Mapping) else dated["default"]
    tokenizer.undated = tokenizer.chat_template, given
    return True


#: Text whose tokens show normalisation, splitting and added tokens of a tokenizer.
_SAMPLE = "The 12,345.6 über-quick\tfoxes' don't e\u0301 jump..\n\n  日本 Ça va? 😀 if x:\n    y += 1"


def text_marks(tokenizer: Any, ends: Iterable[int]) -> dict[str, str]:
    """Name what turns a chat into tokens and ends a text, as fields of a model's specification.

    ``ends`` are the model's end tokens. The chat template counts as it is without today's date, the
    tokenizer by the tokens of a sample and its special tokens, without one for padding.
    """
    dated, given = getattr(tokenizer, "undated", (None, None))
    template = given if dated == tokenizer.chat_template else tokenizer.chat_template
    added = tokenizer.added_tokens_decoder.items()
    special = [i for i, token in added if token.special and "pad" not in str(token).lower()]
    roles = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id
    tokens = [tokenizer(_SAMPLE, verbose=False)["input_ids"], roles, sorted(special)]
    names = (ascii(str(tokenizer.convert_ids_to_tokens(i)))[1:-1] for i in sorted(ends))
    return {
        "template": digest(json.dumps(template, sort_keys=True), 12) if template else "none",
        "ends": " ".join(names) or "none",
        "tokens": digest(json.dumps(tokens), 12),
    }


#: Name of the prompt that takes the form of the model that it is bound to.
AUTO = "auto"
#: The form on which the testbed's model was trained.
TESTBED_PROMPT = PromptTemplate("testbed")
#: Forms of prompt=auto for all other models: with a chat template, and without.
CHAT_PROMPT = PromptTemplate("chat", article="Tell me something about {title}.", chat=True, stop=())
PLAIN_PROMPT = PromptTemplate("plain")
#: The form that fits the model, whichever it is.
AUTO_PROMPT = PromptTemplate(AUTO)
#: File beside the testbed's model, and beside those that its recipe made.
TESTBED_FILE = "testbed.json"


def form_with(fingerprint: str | None) -> PromptTemplate:
    """Find the form of prompt=auto that has a fingerprint; prompt=auto itself if none has."""
    forms = (TESTBED_PROMPT, CHAT_PROMPT, PLAIN_PROMPT)
    return next((form for form in forms if form.fingerprint == fingerprint), AUTO_PROMPT)


#: In place of a fingerprint: prompts as they stand in texts, and messages in texts, by the chat template.
AS_GIVEN, MESSAGES = "", "messages"


def form_name(fingerprint: str) -> str:
    """Describe the form of prompts that features were made with, for messages."""
    given = {AS_GIVEN: "prompts as they stand in the texts", MESSAGES: "messages of chats in the texts"}
    if (known := form_with(fingerprint)) is not AUTO_PROMPT:
        return f"prompt={known.name}"
    return given.get(fingerprint, f"another form of prompts ({fingerprint})")


def of_testbed(tokenizer: Any) -> bool:
    """Tell whether a tokenizer is that of the testbed, or of a model made by its recipe."""
    return Path(getattr(tokenizer, "name_or_path", None) or "", TESTBED_FILE).is_file()


def passages_that_fit(
    fits: Callable[[Sequence[str], Sequence[int]], list[bool]], prompt: PromptTemplate,
    questions: Sequence[tuple[str, Sequence[str], str]], more: Sequence[int],
) -> list[int]:  # fmt: skip
    """Count the passages that fit each question's prompt; whole ones are dropped, the last first.

    A prompt that is too long without any passage is left to the model's ``on_too_long``.

    ``fits`` tells whether each prompt and so many tokens after it fit the model's context, ``more`` are these
    tokens, and ``questions`` are question, passage texts and answer so far of each.
    """
    counts = [len(texts) for _, texts, _ in questions]
    open_ = [i for i, count in enumerate(counts) if count]
    while open_:
        rest = ((counts[i], *questions[i]) for i in open_)
        prompts = [prompt.question(text, passages[:n], partial=part) for n, text, passages, part in rest]
        fit = fits(prompts, [more[i] for i in open_])
        open_ = [i for i, whole in zip(open_, fit, strict=True) if not whole]
        for i in open_:
            counts[i] -= 1
        open_ = [i for i in open_ if counts[i]]
    return counts
