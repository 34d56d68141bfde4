"""The command probers-serve as a user runs it: what it says, how it ends, and what it refuses."""

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai
import pytest
from helpers.refusals import fails

from probers.cli import main as cli

SCRIPT = str(Path(sys.executable).with_name("probers-serve"))
NONE = ("prober=none", "port=0")


@contextmanager
def serving(*arguments: str, cwd: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    environment = {k: v for k, v in os.environ.items() if k != "PROBERS_API_KEY"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "env": environment}
    server = subprocess.Popen([SCRIPT, *arguments], cwd=cwd, **pipes)  # type: ignore[call-overload]
    try:
        line = next((line for line in server.stdout if line.startswith("serving ")), "")
        assert line, server.stderr.read()
        yield server, line.split()[3]
    finally:
        server.kill()
        server.wait()


def test_an_address_that_cannot_be_had_and_a_prober_that_is_missing(monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with fails("network", f"host=127.0.0.1 port={port} "):
            cli.run("serve", ["prober=none", f"port={port}"])
    with fails("network", "host=nowhere.invalid port=8000 "):
        cli.run("serve", ["prober=none", "host=nowhere.invalid"])
    with fails("no-artifact", "probers-train head=radio"):
        cli.run("serve", ["port=0"])


@pytest.mark.long
def test_a_killed_server_starts_again_at_its_address_and_a_terminated_one_ends_what_it_began(
    tmp_path: Path,
) -> None:
    with serving(*NONE, cwd=tmp_path) as (server, url):
        server.kill()
        server.wait()
    with serving("prober=none", f"port={url.rpartition(':')[2]}", cwd=tmp_path) as (server, again):
        assert again == url
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0)
        stream = client.completions.create(
            model="testbed", prompt="The", max_tokens=150, temperature=1.2, seed=1, stream=True
        )
        pieces = iter(stream)
        next(pieces)
        threading.Timer(0.05, server.send_signal, [signal.SIGTERM]).start()
        chunks = list(pieces)
        assert chunks[-1].choices[0].finish_reason in ("length", "stop")
        assert server.wait(30) in (0, -signal.SIGTERM)
        assert "Traceback" not in server.stderr.read()
    assert len("".join(chunk.choices[0].text for chunk in chunks).split()) > 5
