"""The kit for machines without a network: what it leaves out, and that it arrives whole or not at all."""

import json
import sys
from pathlib import Path

import pytest

from probers.checkpoints import PACKAGED
from tools import offline

TAG = offline.Tag("3.12", "manylinux_2_28_aarch64")


@pytest.mark.parametrize("version", ["2.4", "2.4+own"])
def test_wheels_are_those_of_the_other_machine_without_what_it_has(version, tmp_path):
    """Requirements of another Python and another processor, and a package of a version of its own."""
    index, wheels = tmp_path / "index", tmp_path / "wheels"
    for folder in (index, wheels):
        folder.mkdir()
    requires = [
        'newer; python_version >= "3.12"', 'older; python_version < "3.12"',
        'arm; platform_machine == "aarch64"', "there>=2", 'never; sys_platform == "win32"',
    ]  # fmt: skip
    offline.wheel(index, "root", "1", requires)
    for name in ("newer", "older", "arm", "never", "beneath"):
        offline.wheel(index, name, "1")
    offline.wheel(index, "newer", "2", ["there<2.5"])
    offline.wheel(index, "there", "3", ["beneath"])
    offline.wheel(index, "there", "2.4", ["beneath"], "cp312-cp312-manylinux_2_28_aarch64")
    pinned = tmp_path / "constraints.txt"
    pinned.write_text("there==3\nnewer==1\n")
    away = ["--no-index", "--find-links", str(index)]
    offline.gather(wheels, "root", TAG, {"there": version}, pinned, *away)
    names = [each.name.removesuffix("-py3-none-any.whl") for each in sorted(wheels.iterdir())]
    assert names == ["arm-1", "newer-1", "root-1"]


def test_an_extra_of_a_package_there_is_packed_without_it(tmp_path):
    offline.wheel(tmp_path, "root", "1", ["there[more]>=2"])
    offline.wheel(tmp_path, "there", "2", ['beneath; extra == "more"\nProvides-Extra: more', "base"])
    for name in ("beneath", "base"):
        offline.wheel(tmp_path, name, "1")
    (tmp_path / "wheels").mkdir()
    away = ["--no-index", "--find-links", str(tmp_path)]
    offline.gather(tmp_path / "wheels", "root", TAG, {"there": "2", "base": "1"}, None, *away)
    assert {each.name.split("-")[0] for each in (tmp_path / "wheels").iterdir()} == {"root", "beneath"}


def test_a_machine_without_packages_gets_all(tmp_path):
    offline.wheel(tmp_path, "root", "1", ["there>=2"])
    offline.wheel(tmp_path, "there", "3", ["beneath"])
    offline.wheel(tmp_path, "there", "4")
    offline.wheel(tmp_path, "beneath", "1")
    (tmp_path / "wheels").mkdir()
    pinned = tmp_path / "constraints.txt"
    pinned.write_text("there==3\n")
    offline.gather(tmp_path / "wheels", "root", TAG, {}, pinned, "--no-index", "--find-links", str(tmp_path))
    assert {each.name.split("-")[0] for each in (tmp_path / "wheels").iterdir()} == {
        "root",
        "there",
        "beneath",
    }


def test_packages_there_that_do_not_do_are_named(tmp_path, capsys):
    offline.wheel(tmp_path, "root", "1", ["there>=2"])
    (tmp_path / "wheels").mkdir()
    with pytest.raises(SystemExit, match="1"):
        away = ["--no-index", "--find-links", str(tmp_path)]
        offline.gather(tmp_path / "wheels", "root", TAG, {"there": "1"}, None, *away)
    error = capsys.readouterr().err
    assert "there==1" in error and "--upgrade" in error and not list((tmp_path / "wheels").iterdir())


def test_the_list_of_a_machine_names_versions(tmp_path, capsys):
    file = tmp_path / "there.txt"
    file.write_text("# there\nPyYAML==6.0\n\nruamel.yaml==1+cu1  # own\n")
    assert offline.installed(file, []) == {"pyyaml": "6.0", "ruamel-yaml": "1+cu1"}
    assert offline.installed(file, ["Ruamel_YAML"]) == {"pyyaml": "6.0"}
    with pytest.raises(SystemExit, match="2"):
        offline.installed(file, ["numpy"])
    file.write_text("a==1\nown @ file:///home/own\n")
    with pytest.raises(SystemExit, match="2"):
        offline.installed(file, [])
    assert "there.txt:2" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "python", "first", "last", "machine", "system"), [
    ("cp312-manylinux_2_28_x86_64", "3.12", "manylinux_2_28_x86_64", "linux_x86_64", "x86_64", "linux"),
    ("cp310-cp310-manylinux2014_s390x", "3.10", "manylinux_2_17_s390x", "linux_s390x", "s390x", "linux"),
    ("cp313-macosx_11_0_arm64", "3.13", "macosx_11_0_arm64", "macosx_11_0_arm64", "arm64", "darwin"),
    ("cp311-win_amd64", "3.11", "win_amd64", "win_amd64", "AMD64", "win32"),
])  # fmt: skip
def test_a_tag_is_a_python_and_the_platforms_that_run_there(text, python, first, last, machine, system):
    tag = offline.Tag.parse(text)
    platforms, environment = tag.platforms(), tag.environment()
    assert (tag.python, platforms[0], platforms[-1]) == (python, first, last)
    assert environment["platform_machine"] == machine and environment["python_version"] == python
    assert environment["sys_platform"] == system


@pytest.fixture
def kit(tmp_path):
    content, folder = tmp_path / "content", tmp_path / "kit"
    (content / "checkout").mkdir(parents=True)
    (content / "wheels").mkdir()
    folder.mkdir()
    (content / "checkout" / "a.py").write_bytes(bytes(range(256)) * 50)
    (content / "checkout" / "b.py").symlink_to("a.py")
    (content / "wheels" / "x.whl").write_bytes(b"x" * 999)
    about = {
        "python": TAG.python, "platform": TAG.platform, "installed": {}, "extras": ["gguf"], "weights": True,
    }  # fmt: skip
    offline.write_kit(content, folder, 4096, about)
    return folder


def test_pieces_are_put_together_and_the_line_is_printed(kit, tmp_path, capsys):
    pieces = json.loads((kit / "kit.json").read_text())["pieces"]
    sizes = [each["bytes"] for each in pieces]
    assert len(sizes) > 3 and set(sizes[:-1]) == {4096} and 0 < sizes[-1] <= 4096
    target = tmp_path / "there" / "new"
    offline.main(["unpack", str(target), "--kit", str(kit)])
    assert (target / "checkout" / "a.py").read_bytes() == bytes(range(256)) * 50
    assert (target / "checkout" / "b.py").readlink() == Path("a.py")
    line = capsys.readouterr().out
    assert "python3.12 -m venv venv" in line or sys.version_info[:2] == (3, 12)
    assert "--no-index" in line and "'checkout[gguf]'" in line and f"--no-deps {offline.WEIGHTS}" in line
    with pytest.raises(SystemExit, match="2"):  # nothing there is written over
        offline.main(["unpack", str(target), "--kit", str(kit)])


@pytest.mark.parametrize("harm", ["flip", "cut", "remove"])
def test_a_damaged_piece_is_named_and_nothing_is_unpacked(kit, harm, tmp_path, capsys):
    piece = kit / "kit.002"
    data = piece.read_bytes()
    piece.unlink() if harm == "remove" else piece.write_bytes(
        data[:-1] + bytes([data[-1] ^ 1] * (harm == "flip"))
    )
    with pytest.raises(SystemExit, match="1"):
        offline.main(["unpack", str(tmp_path / "new"), "--kit", str(kit)])
    error = capsys.readouterr().err
    assert "kit.002" in error and "kit.001" not in error and not (tmp_path / "new").exists()


def test_the_weights_are_those_that_the_package_asks_for():
    assert PACKAGED["smollm2"][0] == offline.WEIGHTS
    assert offline.WEIGHTS in (offline.ROOT / "Makefile").read_text()
