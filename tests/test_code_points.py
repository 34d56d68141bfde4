"""Characters of a span in other languages: each line of docs/serving.md, run by its language where it is."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs" / "serving.md"
TEXT = "Zoë 🙂🙃 wrote 日本語, e\u0301 and 👍🏽 in 1920."
SPANS = [(0, 3), (4, 6), (4, 5), (5, 16), (13, 25), (18, 20), (25, len(TEXT)), (0, 0)]
#: A program around the line, which prints the characters of each span on a line; its file; how it is run.
PROGRAMS = {
    "Python": ("text = {text}\nfor s, e in {pairs}: print({line})", "cut.py", ["python3 {file}"]),
    "JavaScript": (
        "const text = {text}; for (const [s, e] of {pairs}) console.log({line});", "cut.js", ["node {file}"],
    ),
    "Java": (
        "class Cut {{ public static void main(String[] given) throws Exception {{\n"
        'var out = new java.io.PrintStream(System.out, true, "UTF-8"); String text = {text};\n'
        "for (int[] p : new int[][] {braces}) {{ int s = p[0], e = p[1]; out.println({line}); }} }} }}",
        "Cut.java", ["java {file}"],
    ),
    "Go": (
        'package main\nimport "fmt"\nfunc main() {{ text := {text}\n'
        "for _, p := range [][]int{braces} {{ s, e := p[0], p[1]; fmt.Println({line}) }} }}",
        "cut.go", ["go run {file}"],
    ),
    "Rust": (
        "fn main() {{ let text = {text};\nfor (s, e) in {tuples} {{ println!(\"{{}}\", {line}); }} }}",
        "cut.rs", ["rustc -o {out} {file}", "{out}"],
    ),
}  # fmt: skip


def lines() -> dict[str, str]:
    table = DOCS.read_text().partition("## Characters in other languages")[2].partition("\n## ")[0]
    return dict(re.findall(r"^\| (\S+?),? .*?\| `(.+)` \|$", table, re.MULTILINE))


def test_every_program_is_of_a_line_of_the_docs():
    assert PROGRAMS.keys() <= lines().keys()


@pytest.mark.parametrize("language", PROGRAMS)
def test_a_line_of_the_docs_cuts_the_characters_of_a_span(language, tmp_path):
    program, file, commands = PROGRAMS[language]
    if shutil.which(commands[0].split()[0]) is None:
        pytest.skip(f"{language} is not installed")
    pairs = [list(span) for span in SPANS]
    (tmp_path / file).write_text(program.format(
        text=json.dumps(TEXT, ensure_ascii=False), pairs=pairs, line=lines()[language],
        braces=str(pairs).replace("[", "{").replace("]", "}"), tuples=str(SPANS),
    ))  # fmt: skip
    for command in commands:
        words = command.format(file=tmp_path / file, out=tmp_path / "cut").split()
        done = subprocess.run(words, capture_output=True, text=True, encoding="utf-8", timeout=120)
        assert not done.returncode, done.stderr
    assert done.stdout.splitlines() == [TEXT[start:end] for start, end in SPANS]
