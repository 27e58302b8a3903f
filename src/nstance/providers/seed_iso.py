"""NoCloud seeds: a small ISO 9660 image with the userdata, which cloud-init in a guest finds by its label.

Written here and not by genisoimage, because the server of a hypervisor's cluster may run anywhere. The image has Joliet names,
because plain ISO 9660 has no lower case and no hyphens. The same content gives the same bytes.
"""

import json
import struct
from collections.abc import Mapping

from nstance.model.ids import InstanceId

LABEL = "cidata"
MAX_USERDATA_BYTES = 1024 * 1024
_SECTOR = 2048
_DATE = bytes((80, 1, 1, 0, 0, 0, 0))  # 1980: no time of its own, so that equal content gives equal bytes
_LONG_DATE = b"1980010100000000\0"
_NO_DATE = b"0" * 16 + b"\0"
_PATH_TABLES = {"primary": (19, 20), "joliet": (21, 22)}
_ROOTS = {"primary": 23, "joliet": 24}
_FIRST_FILE = 25
_PATH_TABLE_BYTES = 10  # one entry: the root


def seed(
    id: InstanceId, userdata: bytes, *, extra: Mapping[str, str] | None = None, network_config: bytes = b""
) -> bytes:
    """The seed of an instance. `extra` are more keys of its `meta-data`."""
    metadata = {"instance-id": id, "local-hostname": id, **(extra or {})}
    # JSON, which is YAML too: cloud-init reads the one, a guest without a YAML parser the other.
    files = {"meta-data": json.dumps(metadata).encode() + b"\n", "user-data": userdata}
    return image({**files, "network-config": network_config} if network_config else files)


def image(files: Mapping[str, bytes]) -> bytes:
    """An ISO 9660 image with these files in its root."""
    places: dict[str, int] = {}
    sector = _FIRST_FILE
    for name, body in files.items():
        places[name] = sector
        sector += _sectors(len(body))
    total = sector
    out = bytearray(total * _SECTOR)
    _put(out, 16, _descriptor(1, "primary", LABEL, total))
    _put(out, 17, _descriptor(2, "joliet", LABEL, total))
    _put(out, 18, b"\xffCD001\x01")
    for kind, (little, big) in _PATH_TABLES.items():
        _put(out, little, struct.pack("<BBIHBB", 1, 0, _ROOTS[kind], 1, 0, 0))
        _put(out, big, struct.pack(">BBIHBB", 1, 0, _ROOTS[kind], 1, 0, 0))
        _put(out, _ROOTS[kind], _directory(kind, {name: (places[name], len(files[name])) for name in files}))
    for name, body in files.items():
        _put(out, places[name], body)
    return bytes(out)


def _descriptor(number: int, kind: str, label: str, total: int) -> bytes:
    little, big = _PATH_TABLES[kind]
    is_joliet = kind == "joliet"
    return b"".join(
        (
            struct.pack("B5sBB", number, b"CD001", 1, 0),
            _text("", 32, is_joliet),  # system
            _text(label, 32, is_joliet),
            bytes(8),
            _both(total, 4),
            (b"%/E" if is_joliet else b"").ljust(32, b"\0"),  # Joliet, level 3
            _both(1, 2),
            _both(1, 2),
            _both(_SECTOR, 2),
            _both(_PATH_TABLE_BYTES, 4),
            struct.pack("<II", little, 0),
            struct.pack(">II", big, 0),
            _entry(b"\0", _ROOTS[kind], _SECTOR, is_directory=True),
            _text("", 128, is_joliet),  # volume set
            _text("", 128, is_joliet),  # publisher
            _text("", 128, is_joliet),  # preparer
            _text("", 128, is_joliet),  # application
            _text("", 37, is_joliet) * 3,  # copyright, abstract, bibliography
            _LONG_DATE * 2,
            _NO_DATE * 2,
            b"\x01",
        )
    )


def _directory(kind: str, files: Mapping[str, tuple[int, int]]) -> bytes:
    named = {name.encode("utf-16-be") if kind == "joliet" else _plain(name): place for name, place in files.items()}
    body = b"".join(_entry(name, _ROOTS[kind], _SECTOR, is_directory=True) for name in (b"\0", b"\x01"))
    body += b"".join(_entry(name, start, size) for name, (start, size) in sorted(named.items()))
    if len(body) > _SECTOR:
        raise ValueError(f"expected a few short file names, found {len(files)} that do not fit into one sector")
    return body


def _entry(name: bytes, start: int, size: int, *, is_directory: bool = False) -> bytes:
    padding = b"" if len(name) % 2 else b"\0"
    length = 33 + len(name) + len(padding)
    flags = 2 if is_directory else 0
    numbers = _both(start, 4) + _both(size, 4) + _DATE + struct.pack("BBB", flags, 0, 0) + _both(1, 2)
    return struct.pack("BB", length, 0) + numbers + struct.pack("B", len(name)) + name + padding


def _plain(name: str) -> bytes:
    """`meta-data` → `META_DAT.;1`: eight characters, a dot, a version."""
    kept = "".join(each if each.isascii() and each.isalnum() else "_" for each in name.upper())
    return f"{kept[:8]}.;1".encode()


def _text(text: str, size: int, is_joliet: bool) -> bytes:
    if not is_joliet:
        return text.encode("ascii").ljust(size, b" ")
    padded = text.encode("utf-16-be") + b"\0 " * size
    return padded[: size - size % 2] + b"\0" * (size % 2)


def _both(value: int, size: int) -> bytes:
    """A number in both byte orders."""
    return value.to_bytes(size, "little") + value.to_bytes(size, "big")


def _sectors(size: int) -> int:
    return max(1, -(-size // _SECTOR))


def _put(out: bytearray, sector: int, body: bytes) -> None:
    out[sector * _SECTOR : sector * _SECTOR + len(body)] = body
