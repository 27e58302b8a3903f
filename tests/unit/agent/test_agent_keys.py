import stat
from pathlib import Path

import pytest

from nstance.agent.credentials import key_generation, keys
from nstance.agent.files.folder import Folder
from nstance.pki import keys as pki_keys


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    made = Folder(tmp_path / "keys", mode=0o640)
    made.prepare()
    return made


def test_a_pair_is_made_once_and_kept(folder: Folder) -> None:
    first = keys.ensure(["netsy.server", "netsy.peer"], folder, key_generation.make)
    assert [key.name for key in first] == ["netsy.server", "netsy.peer"]
    assert sorted(path.name for path in folder.path.iterdir()) == [
        "netsy.peer.key",
        "netsy.peer.pub",
        "netsy.server.key",
        "netsy.server.pub",
    ]
    private = (folder.path / "netsy.server.key").read_bytes()
    assert first[0].pem == (folder.path / "netsy.server.pub").read_text()
    assert first[0].pem == pki_keys.public_to_pem(pki_keys.public_bytes(pki_keys.private_key_from_pem(private)))
    assert keys.ensure(["netsy.server", "netsy.peer"], folder, key_generation.make) == first
    assert (folder.path / "netsy.server.key").read_bytes() == private


def test_modes_of_directory_and_files(folder: Folder) -> None:
    keys.ensure(["a"], folder, key_generation.make)
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o750
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.path.iterdir()} == {0o640}


@pytest.mark.parametrize("damage", [None, b"", b"not a key"])
def test_a_half_pair_is_repaired_from_the_private_key(folder: Folder, damage: bytes | None) -> None:
    [first] = keys.ensure(["a"], folder, key_generation.make)
    public = folder.path / "a.pub"
    public.unlink() if damage is None else public.write_bytes(damage)
    assert keys.ensure(["a"], folder, key_generation.make) == [first]
    assert public.read_text() == first.pem


def test_a_private_key_that_cannot_be_read_is_not_replaced(folder: Folder) -> None:
    (folder.path / "a.key").write_text("precious")
    with pytest.raises(keys.KeysRejectedError, match="move an unreadable key file away"):
        keys.ensure(["a"], folder, key_generation.make)
    assert (folder.path / "a.key").read_text() == "precious"


def test_a_link_in_the_place_of_a_key_is_not_followed(folder: Folder, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (folder.path / "a.key").symlink_to(victim)
    with pytest.raises(keys.KeysRejectedError):
        keys.ensure(["a"], folder, key_generation.make)
    assert not victim.exists()


@pytest.mark.parametrize("name", ["", "../up", "/etc/x", ".hidden", "a\0b", "a\nb", "x" * 201])
def test_names_that_are_places_are_refused(folder: Folder, name: str) -> None:
    with pytest.raises(keys.KeysRejectedError):
        keys.ensure(["good", name], folder, key_generation.make)
    assert list(folder.path.iterdir()) == []


def test_names_that_clash_by_case_and_too_many_are_refused(folder: Folder) -> None:
    with pytest.raises(keys.KeysRejectedError, match="case"):
        keys.ensure(["a", "A"], folder, key_generation.make)
    with pytest.raises(keys.KeysRejectedError, match="at most"):
        keys.ensure([f"k{n}" for n in range(257)], folder, key_generation.make)
