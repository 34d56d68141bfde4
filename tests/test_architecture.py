"""The house of docs/architecture.md: one direction, no circle, no room overfull."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: From the ground up; a room imports what stands before it, and itself.
ROOMS = [
    "shared", "entities", "equivalence", "evaluation", "data", "store", "capture", "engine", "heads", "bank",
    "commands", "launch", "datagen", "train", "rag", "serve", "score",
]  # fmt: skip
#: Modules that stand in no folder, and the two rooms that only hold what is shared.
SHARED = {
    "types",
    "options",
    "checksums",
    "deadline",
    "text",
    "files",
    "seeding",
    "lazy",
    "progress",
    "pages",
    "uncertainty",
    "prompts",
    "testbed",
    "configs",
}
#: Those of them that never import each other.
TOP = {"datagen", "train", "rag"}
#: Whose arguments are options that users give by name, as in a YAML file: parts, and the model's doors.
NAMED_OPTIONS = {"__init__", "from_pretrained", "generate", "generate_each"}


def modules() -> dict[str, Path]:
    found = {}
    for room in ("probers", "datagen", "train", "rag", "serve", "configs"):
        for path in (ROOT / room).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if parts[0] == "probers" else ("probers", *parts))
            found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


def imported(name: str, path: Path) -> set[str]:
    """Modules of the project that a module imports, anywhere in it, for types as well."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.ImportFrom):
            continue
        base = node.module or ""
        if node.level:
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            target = f"{base}.{alias.name}"
            target = target if target in MODULES else base
            if target in MODULES and target != name:
                found.add(target)
    return found


IMPORTS = {name: imported(name, path) for name, path in MODULES.items()}


def room(name: str) -> str:
    first = name.split(".")[1] if "." in name else "shared"
    return "shared" if first in SHARED else first


def test_every_module_stands_in_a_room():
    assert {room(name) for name in MODULES} == set(ROOMS)


def test_rooms_import_in_one_direction():
    wrong = [
        (name, other)
        for name, others in IMPORTS.items()
        for other in others
        if ROOMS.index(room(other)) > ROOMS.index(room(name))
        or ({room(name), room(other)} <= TOP and room(name) != room(other))
    ]
    # The package's own door names what lies behind it and imports it when asked.
    assert [pair for pair in wrong if pair[0] != "probers"] == []


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other (Tarjan's strongly connected components of two or more)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in graph.get(node, ()):
            if other not in index:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], index[other])
        if low[node] == index[node]:
            group = [stack.pop()]
            while group[-1] != node:
                group.append(stack.pop())
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def test_a_circle_would_be_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]


def test_nothing_is_imported_in_a_circle_not_even_for_types():
    assert circles(IMPORTS) == []


def test_no_folder_holds_more_than_sixteen_modules():
    folders = defaultdict(list)
    for path in MODULES.values():
        folders[path.parent].append(path.name)
    assert {str(f): len(names) for f, names in folders.items() if len(names) > 16} == {}


@pytest.mark.parametrize("folder", ["probers/engine", "train", "rag", "serve"])
def test_no_function_takes_more_than_seven_arguments(folder):
    found = []
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and node.name not in NAMED_OPTIONS:
                given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                count = len([a for a in given if a.arg not in ("self", "cls")])
                if count > 7:
                    found.append(f"{path.relative_to(ROOT)}:{node.name} ({count})")
    assert found == []


def test_the_tree_has_a_line_for_every_module_and_none_for_what_is_gone():
    layout = (ROOT / "docs" / "architecture.md").read_text().partition("## Modules")[2].partition("\n## ")[0]
    layout = layout.partition("```text\n")[2].partition("```")[0]
    written: list[str] = []
    above: list[str] = []
    for indent, name, slash in re.findall(r"^( *)(\w+)(/?) ", layout, re.MULTILINE):
        above = [*above[: len(indent) // 2], name]
        if not slash:
            written.append("/".join(above))
    folders = ("probers", "datagen", "train", "rag", "serve")
    there = [p.relative_to(ROOT).with_suffix("") for f in folders for p in (ROOT / f).rglob("*.py")]
    assert sorted(written) == sorted(str(p) for p in there if p.name != "__init__")
