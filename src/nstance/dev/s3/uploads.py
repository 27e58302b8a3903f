"""Multipart uploads: parts are files in a hidden folder of the bucket until they are joined.

Standard clients use them above 8 MB. Uploads survive a restart; unfinished ones stay until you remove
`.nstance/uploads/`.
"""

import asyncio
import hashlib
import itertools
import pathlib
import re
import shutil
from collections.abc import Sequence

from nstance import clock as clocks
from nstance.dev.s3.errors import S3Error, invalid
from nstance.objects import directory

MAX_PARTS = 10_000


class Uploads:
    def __init__(self, bucket: pathlib.Path, rng: clocks.Rng) -> None:
        self._folder = bucket / directory.HIDDEN / "uploads"
        self._rng = rng

    async def start(self, key: str) -> str:
        upload = f"{self._rng.bits(128):032x}"

        def make() -> None:
            (self._folder / upload).mkdir(parents=True)
            (self._folder / upload / "key").write_text(key)

        await asyncio.to_thread(make)
        return upload

    async def store_part(self, key: str, upload: str, number: str, body: bytes) -> str:
        """Returns the ETag of the part."""
        if not re.fullmatch("[0-9]{1,5}", number) or not 1 <= int(number) <= MAX_PARTS:
            raise invalid(f"partNumber must be 1 to {MAX_PARTS}, found {number!r}")
        etag = hashlib.md5(body, usedforsecurity=False).hexdigest()

        def write() -> None:
            folder = self._find(key, upload)
            for old in folder.glob(f"{int(number):05d}-*"):
                old.unlink()
            (folder / f"{int(number):05d}-{etag}").write_bytes(body)

        await asyncio.to_thread(write)
        return etag

    async def join(self, key: str, upload: str, wanted: Sequence[tuple[int, str]]) -> bytes:
        """Joins parts, given as (number, ETag)."""
        if not wanted or any(before[0] >= after[0] for before, after in itertools.pairwise(wanted)):
            raise S3Error(400, "InvalidPartOrder", "expected at least one part, in ascending order")

        def read() -> bytes:
            folder = self._find(key, upload)
            pieces = []
            for number, etag in wanted:
                file = folder / f"{number:05d}-{etag}"
                if not re.fullmatch("[0-9a-f]{32}", etag) or not file.is_file():
                    raise S3Error(400, "InvalidPart", f"part {number} with the ETag {etag!r} was not uploaded")
                pieces.append(file.read_bytes())
            return b"".join(pieces)

        return await asyncio.to_thread(read)

    async def end(self, key: str, upload: str) -> None:
        await asyncio.to_thread(lambda: shutil.rmtree(self._find(key, upload)))

    def _find(self, key: str, upload: str) -> pathlib.Path:
        folder = self._folder / upload
        try:
            if re.fullmatch("[0-9a-f]{32}", upload) and (folder / "key").read_text() == key:
                return folder
        except FileNotFoundError:
            pass
        raise S3Error(404, "NoSuchUpload", "the upload does not exist for this key; it was completed or aborted")
