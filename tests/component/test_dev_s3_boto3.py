"""The development S3 server as boto3 sees it: real HTTP, real signatures, real multipart uploads."""

import io
import os
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig

from support import s3_server
from support.s3_boto3 import Client, code_of, using


@pytest.fixture
async def endpoint(tmp_path: pathlib.Path) -> AsyncIterator[str]:
    async with s3_server.serving(tmp_path) as endpoint:
        yield endpoint


async def test_objects_come_and_go(endpoint: str, tmp_path: pathlib.Path) -> None:
    def work(client: Client) -> None:
        put = client.put_object(Bucket="dev", Key="shard/ä b+c.json", Body=b'{"a": 1}')
        got = client.get_object(Bucket="dev", Key="shard/ä b+c.json")
        assert got["Body"].read() == b'{"a": 1}'
        assert got["ETag"] == put["ETag"]
        assert got["ContentType"] == "application/json"
        head = client.head_object(Bucket="dev", Key="shard/ä b+c.json")
        assert (head["ETag"], head["ContentLength"]) == (put["ETag"], 8)
        assert abs((head["LastModified"] - got["LastModified"]).total_seconds()) == 0
        client.delete_object(Bucket="dev", Key="shard/ä b+c.json")
        client.delete_object(Bucket="dev", Key="shard/ä b+c.json")
        assert code_of(lambda: client.get_object(Bucket="dev", Key="shard/ä b+c.json")) == (404, "NoSuchKey")
        assert code_of(lambda: client.head_object(Bucket="dev", Key="shard/ä b+c.json")) == (404, "404")

    await using(endpoint, work)
    assert os.listdir(tmp_path) == [".nstance"]


async def test_objects_are_plain_files_both_ways(endpoint: str, tmp_path: pathlib.Path) -> None:
    def work(client: Client) -> None:
        client.put_object(Bucket="dev", Key="shard/a/config.jsonc", Body=b"{}")
        path = tmp_path / "shard/a/config.jsonc"
        assert path.read_bytes() == b"{}"
        etag = client.head_object(Bucket="dev", Key="shard/a/config.jsonc")["ETag"]
        path.write_bytes(b"{ }")
        found = client.get_object(Bucket="dev", Key="shard/a/config.jsonc")
        assert found["Body"].read() == b"{ }"
        assert found["ETag"] != etag

    await using(endpoint, work)


async def test_conditions_hold(endpoint: str) -> None:
    def work(client: Client) -> None:
        first = client.put_object(Bucket="dev", Key="k", Body=b"1", IfNoneMatch="*")["ETag"]
        again = lambda: client.put_object(Bucket="dev", Key="k", Body=b"2", IfNoneMatch="*")  # noqa: E731
        assert code_of(again) == (412, "PreconditionFailed")
        second = client.put_object(Bucket="dev", Key="k", Body=b"1", IfMatch=first)["ETag"]
        assert second != first  # although the bytes are equal
        assert code_of(lambda: client.put_object(Bucket="dev", Key="k", Body=b"3", IfMatch=first))[0] == 412
        assert code_of(lambda: client.put_object(Bucket="dev", Key="none", Body=b"3", IfMatch=first)) == (
            404,
            "NoSuchKey",
        )
        assert code_of(lambda: client.get_object(Bucket="dev", Key="k", IfMatch=first))[0] == 412
        assert code_of(lambda: client.get_object(Bucket="dev", Key="k", IfNoneMatch=second))[0] == 304
        assert client.get_object(Bucket="dev", Key="k", IfNoneMatch=first)["Body"].read() == b"1"
        # What is not built is refused rather than ignored.
        assert code_of(lambda: client.delete_object(Bucket="dev", Key="k", IfMatch=first)) == (501, "NotImplemented")
        assert code_of(lambda: client.put_object(Bucket="dev", Key="k", Body=b"", IfNoneMatch=first))[0] == 501
        assert client.get_object(Bucket="dev", Key="k")["Body"].read() == b"1"

    await using(endpoint, work)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("bytes=0-3", b"0123"),
        ("bytes=4-", b"456789"),
        ("bytes=-3", b"789"),
        ("bytes=8-100", b"89"),
        ("bytes=0-9", b"0123456789"),
        ("bytes=5-2", b"0123456789"),
        ("lines=1-2", b"0123456789"),
        ("bytes=10-", None),
        ("bytes=-0", None),
    ],
)
async def test_ranges(endpoint: str, asked: str, expected: bytes | None) -> None:
    def work(client: Client) -> None:
        client.put_object(Bucket="dev", Key="k", Body=b"0123456789")
        if expected is None:
            assert code_of(lambda: client.get_object(Bucket="dev", Key="k", Range=asked)) == (416, "InvalidRange")
        else:
            assert client.get_object(Bucket="dev", Key="k", Range=asked)["Body"].read() == expected

    await using(endpoint, work)


async def test_listings_page_group_and_start_after(endpoint: str) -> None:
    names = sorted(
        ["a.txt", "b/1 ü", "b/2+%", "b/c/3", "d", "e/1", "e/2", "f&<>\"'", *(f"j/{n:04d}" for n in range(20))]
    )

    def pages(client: Client, **options: Any) -> tuple[list[str], list[str]]:
        found, common = [], []
        for page in client.get_paginator("list_objects_v2").paginate(Bucket="dev", **options):
            assert len(page.get("Contents", [])) + len(page.get("CommonPrefixes", [])) <= 3
            found += [entry["Key"] for entry in page.get("Contents", [])]
            common += [entry["Prefix"] for entry in page.get("CommonPrefixes", [])]
        return found, common

    def work(client: Client) -> None:
        for name in names:
            client.put_object(Bucket="dev", Key=name, Body=name.encode())
        size = {"PaginationConfig": {"PageSize": 3}}
        assert pages(client, **size) == (names, [])
        assert pages(client, Delimiter="/", **size) == (["a.txt", "d", "f&<>\"'"], ["b/", "e/", "j/"])
        assert pages(client, Prefix="b/", Delimiter="/", **size) == (["b/1 ü", "b/2+%"], ["b/c/"])
        assert pages(client, Prefix="j/00", **size) == ([n for n in names if n.startswith("j/")], [])
        assert pages(client, StartAfter="e/1", **size)[0] == [n for n in names if n > "e/1"]
        entry = client.list_objects_v2(Bucket="dev", Prefix="b/2")["Contents"][0]
        head = client.head_object(Bucket="dev", Key="b/2+%")
        assert (entry["ETag"], entry["Size"]) == (head["ETag"], head["ContentLength"])
        nothing = client.list_objects_v2(Bucket="dev", MaxKeys=0)
        assert (nothing["KeyCount"], nothing["IsTruncated"]) == (0, False)
        bad = lambda: client.list_objects_v2(Bucket="dev", ContinuationToken="%%%")  # noqa: E731
        assert code_of(bad) == (400, "InvalidArgument")

    await using(endpoint, work)


async def test_many_are_deleted_at_once(endpoint: str) -> None:
    def work(client: Client) -> None:
        for n in range(5):
            client.put_object(Bucket="dev", Key=f"k/{n}", Body=b"")
        wanted = [{"Key": f"k/{n}"} for n in range(4)] + [{"Key": "absent"}]
        answer = client.delete_objects(Bucket="dev", Delete={"Objects": wanted})
        assert [entry["Key"] for entry in answer["Deleted"]] == [entry["Key"] for entry in wanted]
        assert [entry["Key"] for entry in client.list_objects_v2(Bucket="dev")["Contents"]] == ["k/4"]

    await using(endpoint, work)


async def test_large_files_go_up_in_parts_and_come_down_in_ranges(endpoint: str, tmp_path: pathlib.Path) -> None:
    body = bytes(range(256)) * 4 * 10_000 * 2  # 20 MB: three parts

    def work(client: Client) -> None:
        config = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20, max_concurrency=3)
        client.upload_fileobj(io.BytesIO(body), "dev", "big", Config=config)
        target = io.BytesIO()
        client.download_fileobj("dev", "big", target, Config=config)
        assert target.getvalue() == body

    await using(endpoint, work)
    assert list((tmp_path / ".nstance/uploads").iterdir()) == []


async def test_uploads_in_parts_are_checked(endpoint: str) -> None:
    def work(client: Client) -> None:
        def begin() -> Any:
            return client.create_multipart_upload(Bucket="dev", Key="k")["UploadId"]

        upload = begin()
        one = client.upload_part(Bucket="dev", Key="k", UploadId=upload, PartNumber=1, Body=b"one ")["ETag"]
        client.upload_part(Bucket="dev", Key="k", UploadId=upload, PartNumber=2, Body=b"old")
        two = client.upload_part(Bucket="dev", Key="k", UploadId=upload, PartNumber=2, Body=b"two")["ETag"]

        def complete(*parts: tuple[int, str], key: str = "k", **options: Any) -> Any:
            document = {"Parts": [{"PartNumber": number, "ETag": etag} for number, etag in parts]}
            return client.complete_multipart_upload(
                Bucket="dev", Key=key, UploadId=upload, MultipartUpload=document, **options
            )

        bad = lambda: client.create_multipart_upload(Bucket="dev", Key="../x")  # noqa: E731
        assert code_of(bad) == (400, "InvalidArgument")
        assert code_of(lambda: complete((2, two), (1, one))) == (400, "InvalidPartOrder")
        assert code_of(lambda: complete((1, two))) == (400, "InvalidPart")
        assert code_of(lambda: complete((1, '"../../key"'))) == (400, "InvalidPart")
        assert code_of(lambda: complete((1, one), key="other")) == (404, "NoSuchUpload")
        assert code_of(lambda: client.get_object(Bucket="dev", Key="k")) == (404, "NoSuchKey")
        etag = complete((1, one), (2, two), IfNoneMatch="*")["ETag"]
        found = client.get_object(Bucket="dev", Key="k")
        assert (found["Body"].read(), found["ETag"]) == (b"one two", etag)
        assert code_of(lambda: complete((1, one))) == (404, "NoSuchUpload")

        upload = begin()
        one = client.upload_part(Bucket="dev", Key="k", UploadId=upload, PartNumber=1, Body=b"lost")["ETag"]
        assert code_of(lambda: complete((1, one), IfNoneMatch="*")) == (412, "PreconditionFailed")
        client.abort_multipart_upload(Bucket="dev", Key="k", UploadId=upload)
        assert client.get_object(Bucket="dev", Key="k")["Body"].read() == b"one two"

    await using(endpoint, work)


async def test_buckets(endpoint: str) -> None:
    def work(client: Client) -> None:
        assert [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == ["dev"]
        client.head_bucket(Bucket="dev")
        assert client.get_bucket_location(Bucket="dev")["LocationConstraint"] is None
        assert code_of(lambda: client.head_bucket(Bucket="none"))[0] == 404
        assert code_of(lambda: client.list_objects_v2(Bucket="none")) == (404, "NoSuchBucket")
        assert code_of(lambda: client.create_bucket(Bucket="dev"))[0] == 409
        assert code_of(lambda: client.create_bucket(Bucket="new")) == (501, "NotImplemented")
        assert client.list_buckets(Prefix="x").get("Buckets", []) == []
        assert code_of(lambda: client.get_bucket_acl(Bucket="dev")) == (501, "NotImplemented")

    await using(endpoint, work)


@pytest.mark.parametrize(
    "key",
    [
        *("folder/", "a//b", "/a", "//", "..", "../x", "a/../b", "a/./b", "a\nb", "a\0b", "\u200b"),
        *(".nstance", ".nstance/locks/00", "x" * 256, "x/" * 512 + "y"),
    ],
)
async def test_keys_that_files_cannot_have_are_refused(endpoint: str, tmp_path: pathlib.Path, key: str) -> None:
    around = sorted(os.listdir(tmp_path.parent))

    def work(client: Client) -> None:
        client.put_object(Bucket="dev", Key="a-source", Body=b"")
        refused = (400, "InvalidArgument")
        assert code_of(lambda: client.put_object(Bucket="dev", Key=key, Body=b"")) == refused
        assert code_of(lambda: client.delete_object(Bucket="dev", Key=key)) == refused
        assert code_of(lambda: client.get_object(Bucket="dev", Key=key)) in (refused, (404, "NoSuchKey"))
        assert code_of(lambda: client.head_object(Bucket="dev", Key=key))[0] in (400, 404)
        assert code_of(lambda: client.head_object(Bucket="dev", Key="folder/"))[0] == 404

    await using(endpoint, work)
    assert sorted(os.listdir(tmp_path.parent)) == around
    assert sorted(os.listdir(tmp_path)) == [".nstance", "a-source"]


@pytest.mark.parametrize(
    "key",
    [
        *("a b", " a ", "a+b", "a%20b", "a%2fb", "%", "u\u0308/ü/😀", "a&b=c?d#e;f", "q'\"<>\\", "*[x]{y}|^`~@!$()"),
        *(".hidden", "...", "-rf", "\ufffd", "x" * 255, "y/" * 100 + "z"),
    ],
)
async def test_odd_keys_are_kept_exactly(endpoint: str, tmp_path: pathlib.Path, key: str) -> None:
    def work(client: Client) -> None:
        client.put_object(Bucket="dev", Key=key, Body=b"1")
        assert (tmp_path / key).read_bytes() == b"1"
        assert [each["Key"] for each in client.list_objects_v2(Bucket="dev", Prefix=key)["Contents"]] == [key]
        assert client.get_object(Bucket="dev", Key=key)["Body"].read() == b"1"
        answer = client.delete_objects(Bucket="dev", Delete={"Objects": [{"Key": key}]})
        assert [each["Key"] for each in answer["Deleted"]] == [key]

    await using(endpoint, work)
    assert os.listdir(tmp_path) == [".nstance"]


async def test_wrong_credentials_are_refused(endpoint: str) -> None:
    def listing(client: Client) -> tuple[int, str]:
        return code_of(lambda: client.list_objects_v2(Bucket="dev"))

    assert await using(endpoint, listing, secret="wrong") == (403, "SignatureDoesNotMatch")
    assert await using(endpoint, listing, access="nobody") == (403, "InvalidAccessKeyId")


@pytest.mark.parametrize("algorithm", ["CRC32", "SHA1", "SHA256"])
async def test_checksums_are_accepted(endpoint: str, algorithm: str) -> None:
    def work(client: Client) -> None:
        client.put_object(Bucket="dev", Key="k", Body=io.BytesIO(b"x" * 300_000), ChecksumAlgorithm=algorithm)
        assert client.get_object(Bucket="dev", Key="k")["Body"].read() == b"x" * 300_000
        wrong = lambda: client.put_object(Bucket="dev", Key="k", Body=b"y", ContentMD5="AAAAAAAAAAAAAAAAAAAAAA==")  # noqa: E731
        assert code_of(wrong) == (400, "BadDigest")

    await using(endpoint, work)


async def test_what_no_file_can_keep_is_refused(endpoint: str) -> None:
    def work(client: Client) -> None:
        def put(**options: Any) -> tuple[int, str]:
            return code_of(lambda: client.put_object(Bucket="dev", Key="k", Body=b"1", **options))

        assert put(Tagging="a=b") == put(Metadata={"a": "b"}) == (501, "NotImplemented")
        assert put(SSECustomerAlgorithm="AES256", SSECustomerKey="k" * 32) == (501, "NotImplemented")
        assert put(WebsiteRedirectLocation="/x") == (501, "NotImplemented")
        assert put(ObjectLockLegalHoldStatus="ON") == (501, "NotImplemented")
        assert put(GrantRead="id=1") == (501, "NotImplemented")
        assert put(ACL="public-read") == (400, "AccessControlListNotSupported")
        assert code_of(lambda: client.head_object(Bucket="dev", Key="k"))[0] == 404
        client.put_object(Bucket="dev", Key="k", Body=b"1", ACL="private")
        copied = lambda: client.copy_object(Bucket="dev", Key="copy", CopySource="dev/k")  # noqa: E731
        assert code_of(copied) == (501, "NotImplemented")
        assert code_of(lambda: client.list_objects(Bucket="dev")) == (501, "NotImplemented")
        tags = {"TagSet": [{"Key": "a", "Value": "b"}]}
        assert code_of(lambda: client.put_object_tagging(Bucket="dev", Key="k", Tagging=tags))[0] == 501
        assert code_of(lambda: client.get_object_acl(Bucket="dev", Key="k"))[0] == 501
        wanted = {"Objects": [{"Key": "k", "VersionId": "7"}]}
        assert code_of(lambda: client.delete_objects(Bucket="dev", Delete=wanted)) == (501, "NotImplemented")
        # Two parameters of which one begins like the other: their order counts in the signature.
        csv = {"InputSerialization": {"CSV": {}}, "OutputSerialization": {"CSV": {}}}
        select = lambda: client.select_object_content(  # noqa: E731
            Bucket="dev", Key="k", ExpressionType="SQL", Expression="SELECT 1", **csv
        )
        assert code_of(select) == (501, "NotImplemented")

    await using(endpoint, work)


async def test_one_bad_key_does_not_stop_the_deletion_of_others(endpoint: str) -> None:
    def work(client: Client) -> None:
        for key in ("a", "b"):
            client.put_object(Bucket="dev", Key=key, Body=b"")
        wanted = [{"Key": "a"}, {"Key": "../x"}, {"Key": "b"}]
        answer = client.delete_objects(Bucket="dev", Delete={"Objects": wanted})
        assert [entry["Key"] for entry in answer["Deleted"]] == ["a", "b"]
        assert [(entry["Key"], entry["Code"]) for entry in answer["Errors"]] == [("../x", "InvalidArgument")]
        assert client.list_objects_v2(Bucket="dev")["KeyCount"] == 0

    await using(endpoint, work)
