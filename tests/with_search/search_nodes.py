"""Real OpenSearch nodes on loopback, each a process that is started, killed and started again."""

import os
import shutil
import signal
import socket
import subprocess
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import httpx

ROOT = Path(__file__).parents[2]
#: Folder of the jars, which ``make test-search`` names.
JARS = os.environ.get("PROBERS_SEARCH_JARS")
WAIT = 90  # seconds for a node to answer


def missing() -> str | None:
    """Why no node can be started here, or None."""
    if JARS is None:
        return "make test-search names the jars of a search server"
    if not list(Path(JARS).glob("opensearch-2*.jar")):
        return f"{JARS} holds no jars of OpenSearch"
    return None if shutil.which("java") else "java is not installed: apt-get install openjdk-17-jre-headless"


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


class Node:
    """One node; ``folder`` keeps its data over a kill."""

    def __init__(self, folder: Path, settings: dict[str, object], heap: str = "320m") -> None:
        self.folder, self.port, self.transport = folder, *free_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.settings, self.heap = settings, heap
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        (self.folder / "config").mkdir(parents=True, exist_ok=True)
        settings = {
            "path.home": self.folder, "node.name": self.folder.name, "network.host": "127.0.0.1",
            "http.port": self.port, "transport.port": self.transport,
            "cluster.routing.allocation.disk.threshold_enabled": "false", **self.settings,
        }  # fmt: skip
        options = [f"-Xms{self.heap}", f"-Xmx{self.heap}", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        classes = ["-cp", f"{Path(str(JARS)).resolve()}/*", str(ROOT / "tools/search/SearchNode.java")]
        given = [f"{key}={value}" for key, value in settings.items()]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *options, *classes, *given], stdout=log, stderr=log, cwd=self.folder
            )

    def wait(self) -> None:
        """Wait until it answers."""
        end = time.monotonic() + WAIT
        while self._process is not None and self._process.poll() is None and time.monotonic() < end:
            with suppress(httpx.TransportError):
                self.get("/")
                return
            time.sleep(0.2)
        raise AssertionError((self.folder / "log").read_text()[-4000:])

    def kill(self) -> None:
        """End it at once, as a lost machine does."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def pause(self, *, on: bool) -> None:
        """Let it hang, or go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if on else signal.SIGCONT)

    def get(self, path: str) -> dict[str, object]:
        return self.send("GET", path)

    def send(self, method: str, path: str, body: object = None) -> dict:
        """Ask it without any client of its own; a failure's answer is returned like any other."""
        answer = httpx.request(method, self.url + path, json=body, timeout=60)
        return answer.json() if answer.content else {}

    def indexes(self) -> set[str]:
        return set(self.get("/_all"))


def alone(folder: Path) -> Node:
    """A node that is a cluster by itself."""
    return Node(folder / "alone", {"discovery.type": "single-node", "cluster.name": folder.name})


def cluster(folder: Path, count: int = 3) -> list[Node]:
    """Nodes of one cluster."""
    made = [Node(folder / f"n{i}", {}, "256m") for i in range(count)]
    for node in made:
        node.settings = {
            "cluster.name": folder.name,
            "discovery.seed_hosts": ",".join(f"127.0.0.1:{other.transport}" for other in made),
            "cluster.initial_cluster_manager_nodes": ",".join(other.folder.name for other in made),
        }
    return made
