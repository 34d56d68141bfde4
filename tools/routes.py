"""Number of modules on each of the routes, that is, of files to open to follow one.

    python tools/routes.py [question|article|generation] [list=true]

A module counts if one of its functions is called between the start of the command and its
end, in any thread. Importing it does not count: every route is walked twice and counted the
second time. docs/architecture.md follows the same routes.
"""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def modules_called(work: Callable[[], Any]) -> list[str]:
    """Name the modules of ``probers`` whose functions ``work`` calls."""
    work()
    seen: set[str] = set()

    def profile(frame: Any, event: str, arg: Any) -> None:
        if event == "call" and frame.f_code.co_name != "<module>":
            name = frame.f_globals.get("__name__", "")
            if name == "probers" or name.startswith("probers."):
                seen.add(name)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    return sorted(seen)


def question() -> None:
    """Answer one question with ``trigger=rind query=qfs``."""
    from probers.cli.main import run

    run("rag", ["question=Who does Lena Zaser work for?", "trigger=rind", "query=qfs"])


def article() -> None:
    """Cut, continue and label one article into a store."""
    from probers.cli.main import run

    with tempfile.TemporaryDirectory() as folder:
        run("datagen", ["--source", "wiki", "limit=1", f"out={Path(folder) / 'store'}"])


def generation() -> Callable[[], Any]:
    """Record one text with mean-pooled states of all layers; loading the model does not count."""
    from probers import CausalLM, Needs

    lm = CausalLM.from_pretrained("testbed")
    needs = Needs.of(tuple(range(1, lm.num_layers + 1)))
    prompt = "Question: Who does Lena Zaser work for?\nAnswer:"
    return lambda: lm.generate([prompt], max_new_tokens=16, needs=needs)


def routes() -> Iterator[tuple[str, list[str]]]:
    """Yield each route by name, with the modules it passes through."""
    yield "question", modules_called(question)
    yield "article", modules_called(article)
    yield "generation", modules_called(generation())


def main() -> None:
    """Print the counts, and with ``list=true`` the modules."""
    wanted = [a for a in sys.argv[1:] if "=" not in a]
    with contextlib.redirect_stdout(io.StringIO()):
        results = [(name, modules) for name, modules in routes() if not wanted or name in wanted]
    for name, modules in results:
        print(f"{name}: {len(modules)} modules")
        if "list=true" in sys.argv:
            print("\n".join(f"  {module}" for module in modules))


if __name__ == "__main__":
    main()
