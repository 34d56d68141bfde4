"""Pages of the documentation as tests read them: blocks of code and what is done with each, links, headings.

What is to be done with a block stands in a comment right before it, which no reader sees:

    <!-- test: slow, with limit=8 epochs=1 -->   run by the slow tests, these options added
    <!-- test: accepted; WHY -->                 not run; its commands are checked, as those of all blocks are
    <!-- test: not run; WHY -->                  likewise, for what is no command of ours
    <!-- test: file NAME -->                     kept in a file, for the blocks below it

A block without one is run by the fast tests; by the slow ones on a page where such a block types a command.
"""

import ast
import json
import pkgutil
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import metadata
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token

from probers.cli import main as cli
from probers.cli.components import choices
from probers.cli.compose import COMMANDS, compose, normalise, request
from probers.cli.help import help_of
from probers.rag.comparison.compare import selection_of
from probers.types import UserError

ROOT = Path(__file__).parents[2]

_MARK = re.compile(
    r"<!-- test: (?:(?P<how>slow)(?:, with (?P<options>[^;]+?))?"
    r"|(?P<idle>accepted|not run); (?P<why>\S.*?)|file (?P<file>[\w.]+)) -->"
)
#: A command of ours up to its comment or the next command, with the variables set for it.
_TYPED = re.compile(r"^(?:\w+=\S+ )*(probers-\w+)(?:'[^']*'|\"[^\"]*\"|[^#;&|\n])*", re.MULTILINE)
_HERE = re.compile(r"(<<-?\s*'?(\w+)'?[^\n]*\n).*?\n\2$", re.DOTALL | re.MULTILINE)
_OF_A_MACHINE = re.compile(r"(?<![\w./])/(?:work|home|root|Users|mnt)/\S*")
_IN_THE_TREE = re.compile(
    r"(?:docs|examples|benchmarks|tests|configs|probers|datagen|train|rag|serve)/[a-z_\d./]*[a-z_\d]"
)


@dataclass(frozen=True)
class Block:
    """The text between two fences, and what is done with it."""

    line: int
    language: str
    text: str
    how: str = "run"
    options: tuple[str, ...] = ()
    file: str | None = None

    @property
    def commands(self) -> list[list[str]]:
        """The words of every command of a shell's block, without the variables set for it."""
        return list(_commands(self.text)) if self.language == "bash" else []

    def added(self, command: list[str]) -> list[str]:
        """Those of the block's options that a command of it has."""
        keys = _keys(command[0])
        return [option for option in self.options if option.split("=")[0].split(".")[0] in keys]

    def shortened(self) -> str:
        """A shell's block with its options behind the commands that have them."""

        def more(match: re.Match[str]) -> str:
            return " ".join([match[0].rstrip(), *map(shlex.quote, self.added([match[1]])), ""])

        return _TYPED.sub(more, self.text.replace("\\\n", " "))


@dataclass
class Page:
    """A page's blocks, links, headings, what it has as code within lines, and faults of form."""

    name: str
    text: str
    blocks: list[Block] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    anchors: list[str] = field(default_factory=list)
    code: list[str] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)


@cache
def page(name: str) -> Page:
    """A page of the repository, by its path there."""
    return read(name, (ROOT / name).read_text())


def read(name: str, text: str) -> Page:
    """The parts of a page that are tested."""
    page = Page(name, text)
    if text.startswith("---\n"):  # a notebook's front matter
        text = re.sub(r"\A---\n.*?\n---\n", lambda m: "\n" * m[0].count("\n"), text, flags=re.DOTALL)
    mark = ""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for before, token in pairwise([None, *tokens]):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "fence":
            _fence(page, token, line, mark)
        elif mark:
            page.faults.append(f"line {line}: no block of code follows {mark}")
        mark = ""
        if token.type == "html_block" and "test:" in token.content:
            mark = token.content.strip()
        elif token.type == "code_block":
            page.faults.append(f"line {line}: an indented block, which no test reads; put it between fences")
        for child in token.children or () if token.type == "inline" else ():
            if child.type in ("link_open", "image"):
                page.links.append(str(child.attrs["href" if child.type == "link_open" else "src"]))
            elif child.type == "code_inline":
                page.code.append(child.content)
        if before and before.type == "heading_open":  # its anchor, as GitHub and MyST make it
            title = "".join(child.content for child in token.children or ()).lower()
            page.anchors.append(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
    return page


def _fence(page: Page, token: Token, line: int, mark: str) -> None:
    language = token.info.strip()
    if language.startswith("{"):  # a directive of Sphinx
        return
    if language not in _PARSERS:
        page.faults.append(f"line {line}: a block of {language or 'no language'}, not of {list(_PARSERS)}")
        return
    how, options, file = "run", (), None
    if matched := _MARK.fullmatch(mark):
        how, file = matched["how"] or matched["idle"] or "file", matched["file"]
        options = tuple(shlex.split(matched["options"] or ""))
    elif mark:
        page.faults.append(f"line {line}: {mark} is no mark of tests/helpers/documents.py")
    page.blocks.append(Block(line, language, token.content, how, options, file))


def _commands(text: str) -> Iterator[list[str]]:
    text = _HERE.sub(r"\1", text).replace("\\\n", " ")
    for line in text.splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars="();|&")
        words.whitespace_split = True
        command: list[str] = []
        for word in [*words, ";"]:
            if set(word) <= set(";|&()"):
                if command:
                    yield command
                command = []
            elif command or not re.match(r"[A-Za-z_]\w*=", word):
                command.append(word)


@cache
def _keys(program: str) -> set[str]:
    name = program.removeprefix("probers-")
    return {*map(str, compose(name, []))} if name in COMMANDS else set()


_request = cache(request)


@cache
def refused(command: tuple[str, ...]) -> str | None:
    """Why a command as typed is refused, before anything is read or run; None where it is not."""
    program, *words = command
    if program == "make":
        targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        wrong = [word for word in words if "=" not in word and word not in targets]
        return f"the Makefile has no {', '.join(wrong)}" if wrong else None
    if program == "pip" or words[:2] == ["-m", "pip"]:
        named = ",".join(re.findall(r"(?:^| )(?:probers|\.)\[([\w,]+)\]", " ".join(words))).split(",")
        wrong = sorted({*named} - {"", *metadata("probers").get_all("Provides-Extra", [])})
        return f"the package has no extra {', '.join(wrong)}" if wrong else None
    if program.startswith("python"):
        wrong = [word for word in words[:1] if word.endswith(".py") and not (ROOT / word).exists()]
        return f"there is no {wrong[0]}" if wrong else None
    if not program.startswith("probers-"):
        return None
    name = program.removeprefix("probers-")
    if name not in COMMANDS:
        return f"there is no command {program}"
    if {"--help", "-h"} & set(words):
        return None
    try:
        # What a scheduler's variable stands for is a number.
        typed = [re.sub(r"\$[A-Z_]+", "1", word) for word in words]
        overrides = normalise(name, [word for word in typed if word not in ("-m", "--cfg", "job")])
        for job in cli.combinations(overrides) if "-m" in words else [overrides]:
            config = _request(name, (*job,))
            if name == "compare":  # whose methods are built when it runs
                unknown = {*map(str, config.triggers)} - {*map(str, config.methods)}
                unknown |= {*map(str, config.queries or ())} - {*choices("query")}
                if unknown:
                    return f"there is no method or query {', '.join(sorted(unknown))}"
                selection_of(config).varied(config.vary)
    except UserError as error:
        return str(error)
    return None


def written_to(command: list[str]) -> str | None:
    """The folder that a command of ours writes its run to, where its options name one."""
    name = command[0].removeprefix("probers-")
    if name not in COMMANDS or {"--help", "-h"} & set(command):
        return None
    return getattr(_request(name, (*normalise(name, command[1:]),)), "out", None)


def _python(code: str) -> None:
    """Raises ValueError where code imports from the package what is not there."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "probers":
            for alias in node.names:
                try:
                    pkgutil.resolve_name(f"{node.module}.{alias.name}")
                except (ImportError, AttributeError):
                    raise ValueError(f"there is no {node.module}.{alias.name}") from None


#: What raises where a block is not of its language.
_PARSERS: dict[str, Callable[[str], object]] = {
    "json": json.loads, "yaml": yaml.safe_load, "python": _python, "bash": lambda text: [*_commands(text)],
    "text": str, **dict.fromkeys(("javascript", "java", "go", "rust"), str),
}  # fmt: skip


def _of_block(block: Block) -> Iterator[str]:
    try:
        _PARSERS[block.language](block.text)
    except (ValueError, yaml.YAMLError, SyntaxError) as error:
        yield f"no {block.language}: {error}"
        return
    for command in block.commands:
        if message := refused((*command,)) or refused((*command, *block.added(command))):
            yield f"{shlex.join(command)}: {message}"
    if unused := set(block.options).difference(*map(block.added, block.commands)):
        yield f"no command of the block has {', '.join(sorted(unused))}"


def _led_nowhere(link: str, of: Page) -> bool:
    """Whether a link within the repository has no target."""
    if re.match(r"[a-z]+:", link):
        return False
    path, _, anchor = link.partition("#")
    target = (ROOT / of.name).parent.joinpath(unquote(path)).resolve() if path else ROOT / of.name
    if not target.is_relative_to(ROOT) or (path and not target.exists()):
        return True
    if not anchor or target.suffix != ".md":
        return False
    there = page(str(target.relative_to(ROOT))) if path else of
    return anchor not in {*there.anchors, *_anchors_of_commands()}


@cache
def _anchors_of_commands() -> set[str]:
    """Anchors of the reference's pages, which docs/extensions/command_help.py makes."""
    anchors = set()
    for name in COMMANDS:
        documented = help_of(name)
        blocks = {key.name.partition(".")[0] for key in documented.keys if "." in key.name}
        anchors |= {f"{name}-{part}" for part in ("keys", *blocks, *documented.groups)}
    return anchors


def faults(of: Page, *, blocks: bool = True) -> list[str]:
    """All that is wrong with a page, of what can be said without running its blocks; or without these."""
    messages = list(of.faults)
    for block in of.blocks if blocks else ():
        messages += [f"line {block.line}: {message}" for message in _of_block(block)]
    for text in of.code:
        if re.match(r"(probers-\w+|make) \S", text):
            # What is left open is not checked.
            message = refused(tuple(word for word in shlex.split(text) if not word.endswith("..")))
            messages += [f"`{text}`: {message}"] if message else []
        elif _IN_THE_TREE.fullmatch(text) and not any(ROOT.glob(f"{text}*")):
            messages.append(f"there is no `{text}`")
    messages += [f"the link {link} leads nowhere" for link in of.links if _led_nowhere(link, of)]
    messages += [f"{path} is a path of one machine" for path in _OF_A_MACHINE.findall(of.text)]
    return messages
