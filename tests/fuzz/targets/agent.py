"""What an agent is sent: files with their names, and the metadata service's answers."""

import os
import tempfile
from pathlib import Path

from google.protobuf.message import DecodeError

from fuzz.law import Broken, target
from nstance.agent import spot
from nstance.agent.files import content, installation
from nstance.agent.files.folder import Folder
from nstance.agent.metadata import Answer, MetadataUnavailableError
from nstance.v1 import agent_pb2

MOST = 20  # messages of one input

# Each message of a set stands behind its length in two bytes.
NAMES = (
    b"../",
    b"/etc/shadow",
    b"\0",
    b".incoming-1",
    b"a\xcc\x81",
    b"CON",
    b"\x12\x02\x0a\x00",
    b"\n\x05\n\x03",
    b"files.json",
)


@target("files", installation.FilesRejectedError, words=NAMES)
def file_set(data: bytes) -> None:
    messages = []
    while data and len(messages) < MOST:
        size = int.from_bytes(data[:2], "big")
        try:
            messages.append(agent_pb2.FileMessage.FromString(data[2 : 2 + size]))
        except DecodeError:
            messages.append(agent_pb2.FileMessage(commit=agent_pb2.Commit(config_hash="x", files=len(messages))))
        data = data[2 + size :]
    with tempfile.TemporaryDirectory() as above:
        root = Path(above)
        _receive(root, messages)
        found = sorted(str(path.relative_to(root)) for path in root.rglob("*"))
        outside = [path for path in found if not path.startswith(("identity", "recv"))]
        if outside or any(path.count("/") > 1 for path in found):
            raise Broken(f"files where none belong: {found}")


def _receive(root: Path, messages: list[agent_pb2.FileMessage]) -> None:
    recv, identity = Folder(root / "recv", mode=0o640), Folder(root / "identity", mode=0o600)
    recv.prepare()
    identity.prepare()
    received = installation.ReceivedFiles(recv=recv, identity=identity)
    incoming = None
    for message in messages:
        incoming = incoming or received.begin()
        if message.WhichOneof("kind") == "file":
            incoming.add(message.file.name, message.file.content)
        elif message.WhichOneof("kind") == "commit":
            incoming.commit(message.commit.config_hash, message.commit.files)
            incoming = None
    received.recover()
    received.states()
    with recv.enter() as inside:
        for name in inside.names():
            if os.stat(name, dir_fd=inside.fd, follow_symlinks=False).st_mode & 0o7137:
                raise Broken(f"{name!r} has more rights than files have")


CONTENT = (
    b"a.json\n",
    b"a.jsonc\n",
    b"a.env\n",
    b"a.crt\n",
    b"a.key\n",
    b"a.pub\n",
    b"/*",
    b"*/",
    b"KEY='",
    b'KEY="',
    b"\\\n",
    b"# ",
)


@target("content", content.InvalidContentError, words=CONTENT)
def file_content(data: bytes) -> None:
    """The first line is the file's name."""
    name, _, body = data.partition(b"\n")
    content.check(name.decode("utf-8", "replace"), body)


@target(
    "spot",
    MetadataUnavailableError,
    words=(b'"action"', b'"time"', b'"noticeTime"', b"+23:59", b"9999-12-31T23:59:59Z", b"0001-01-01T00:00:00+14:00"),
)
def spot_event(data: bytes) -> None:
    spot._event(Answer(200, {}, data), "action", "time")
