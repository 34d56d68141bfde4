"""The house of docs/architecture.md: one direction, no circle, no room overfull, and bounds on its size."""

import ast
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import get_args

import pytest

from probers.types import Code
from tools import routes

ROOT = Path(__file__).parents[1]
#: Ratchet: what is there now, which nothing may exceed. Lower a number when it falls; the goal stands behind.
LIMITS = {
    "modules": 251,  # goal 235, and grounding, the value of a retrieval, engines and texts of others
    "lines": 56162,  # goal 43,500; without tests, benchmarks, tools and docs
    "lines of tests": 31000,
    "modules of a folder": 16,  # goal 16
    "modules on the route of a question": 49,  # goal 46, and the thinking before an answer
    "modules on the route of an article": 56,  # goal 52, and the language of the articles
    "modules on the route of a generation": 12,  # goal 12
    "prints": 0,  # goal 0
    "functions of more than seven arguments": 0,  # goal 0
    "modules with a raw DictConfig": 0,  # goal 0
}
#: Modules that write to the terminal themselves; all others log.
PRINTING = {"probers.cli.main", "probers.rag.command"}
#: The module that turns typed words into settings and alone sees Hydra's configuration.
COMPOSING = "probers.cli.compose"
#: From the ground up; a room imports what stands before it, and itself.
ROOMS = [
    "shared", "words", "evaluation", "data", "store", "model", "signals", "heads", "prober", "cli",
    "adaptive", "datagen", "train", "rag", "serve", "score", "verbs",
]  # fmt: skip
#: Modules that stand in no folder, and the two rooms that only hold what is shared.
SHARED = {
    "types", "parts", "options", "checkpoints", "checksums", "files", "pages", "progress", "prompts",
    "testbed", "configs",
}  # fmt: skip
#: Those of them that never import each other.
TOP = {"datagen", "train", "rag"}


def modules() -> dict[str, Path]:
    paths = {}
    for room in ("probers", "datagen", "train", "rag", "serve", "configs"):
        for path in (ROOT / room).rglob("*.py"):
            parts = path.relative_to(ROOT).with_suffix("").parts
            name = ".".join(parts if parts[0] == "probers" else ("probers", *parts))
            paths[name.removesuffix(".__init__")] = path
    return paths


MODULES = modules()


def imported(name: str, path: Path) -> set[str]:
    """Modules of the project that a module imports, anywhere in it, for types as well."""
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    targets = set()
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
                targets.add(target)
    return targets


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


def test_nothing_is_imported_in_a_circle_not_even_for_types():
    TopologicalSorter(IMPORTS).prepare()  # raises CycleError


def lines(paths: list[Path]) -> int:
    return sum(path.read_text().count("\n") for path in paths)


def test_the_house_is_small():
    assert len(MODULES) <= LIMITS["modules"]
    assert lines([*MODULES.values()]) <= LIMITS["lines"]
    assert lines([*(ROOT / "tests").rglob("*.py")]) <= LIMITS["lines of tests"]
    folders = Counter(path.parent for path in MODULES.values())
    assert max(folders.values()) <= LIMITS["modules of a folder"], folders


@pytest.mark.parametrize("route", ["a question", "an article", "a generation"])
def test_a_route_passes_through_few_modules(route, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    work = getattr(routes, route.split()[1])
    routed = routes.modules_called(work() if route == "a generation" else work)
    assert len(routed) <= LIMITS[f"modules on the route of {route}"], routed


def nodes() -> Iterator[tuple[str, ast.AST]]:
    """Every node of every module, with the module's name."""
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            yield name, node


def called(node: ast.AST) -> str:
    """The plain name of a called function, or nothing."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def within(limit: str, names: list[str]) -> None:
    assert len(names) <= LIMITS[limit], f"{limit}: {len(names)}\n" + "\n".join(names)


def test_only_commands_print():
    lines = [f"{name}:{node.lineno}" for name, node in nodes() if called(node) == "print"]
    within("prints", [place for place in lines if place.partition(":")[0] not in PRINTING])


def test_functions_take_few_arguments():
    names = []
    for name, node in nodes():
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            given = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            if len([argument for argument in given if argument.arg not in ("self", "cls")]) > 7:
                names.append(f"{name}:{node.name}")
    within("functions of more than seven arguments", names)


def test_settings_arrive_typed():
    named = {name for name, node in nodes() if isinstance(node, ast.alias) and node.name == "DictConfig"}
    within("modules with a raw DictConfig", sorted(named - {COMPOSING}))


def test_every_error_has_a_code_of_the_list():
    errors = [(name, node) for name, node in nodes() if called(node) in ("UserError", "RunError")]
    assert len(errors) > 500
    wrong = []
    for name, call in errors:
        given = [*call.args[1:2], *(keyword.value for keyword in call.keywords if keyword.arg == "code")]
        wrong += [f"{name}:{call.lineno}" for code in given
                  if isinstance(code, ast.Constant) and code.value not in get_args(Code)]  # fmt: skip
    assert wrong == []
