"""Seeds, read back by a small reader that follows the directories of the image."""

import json
import struct

import pytest

from nstance.model.ids import InstanceId
from nstance.providers import seed_iso

ID = InstanceId("knc-01jw51srryegh9snf9cmeh3k4q")
SECTOR = 2048


def files(image: bytes, descriptor: int, encoding: str) -> dict[str, bytes]:
    """The files of the root directory that a volume descriptor names."""
    volume = image[descriptor * SECTOR : (descriptor + 1) * SECTOR]
    assert volume[1:6] == b"CD001"
    start, size = struct.unpack_from("<I4xI", volume, 156 + 2)
    assert struct.unpack_from(">I4xI", volume, 156 + 6) == (start, size), "both byte orders say the same"
    found, position = {}, start * SECTOR
    while image[position]:
        entry = image[position : position + image[position]]
        start, size = struct.unpack_from("<I4xI", entry, 2)
        name = entry[33 : 33 + entry[32]]
        if not entry[25] & 2:
            found[name.decode(encoding)] = image[start * SECTOR : start * SECTOR + size]
        position += len(entry)
    return found


@pytest.mark.parametrize("size", [0, 1, 2047, 2048, 2049, seed_iso.MAX_USERDATA_BYTES])
def test_the_userdata_comes_back(size: int) -> None:
    userdata = bytes(each % 251 for each in range(size))
    image = seed_iso.seed(ID, userdata, extra={"mac-address": "02:00:00:00:00:01"})
    read_back = files(image, 17, "utf-16-be")
    assert read_back["user-data"] == userdata
    assert json.loads(read_back["meta-data"]) == {
        "instance-id": ID,
        "local-hostname": ID,
        "mac-address": "02:00:00:00:00:01",
    }
    assert set(files(image, 16, "ascii")) == {"META_DAT.;1", "USER_DAT.;1"}
    assert len(image) % SECTOR == 0


def test_the_label_is_what_cloud_init_looks_for() -> None:
    image = seed_iso.seed(ID, b"")
    assert image[16 * SECTOR + 40 :][:32].rstrip() == b"cidata"
    assert image[17 * SECTOR + 40 :][:32].decode("utf-16-be").rstrip() == "cidata"


def test_equal_content_gives_equal_bytes() -> None:
    assert seed_iso.seed(ID, b"x") == seed_iso.seed(ID, b"x")


def test_too_many_files_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        seed_iso.image({f"file-{number}": b"" for number in range(100)})
