"""Copies, parts that are copied, uploads that are listed, and the headers that an object keeps, as boto3 sees them."""

import datetime
import io
import pathlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from boto3.s3.transfer import TransferConfig

from support import s3_server
from support.s3_boto3 import Client, code_of, using

HOUR = datetime.timedelta(hours=1)


@pytest.fixture
async def endpoint(tmp_path: pathlib.Path) -> AsyncIterator[str]:
    async with s3_server.serving(tmp_path) as endpoint:
        yield endpoint


async def test_a_large_object_is_copied_in_parts(endpoint: str, tmp_path: pathlib.Path) -> None:
    body = bytes(range(256)) * 4 * 9_000  # 9 MB: two parts

    def work(client: Client) -> None:
        config = TransferConfig(multipart_threshold=8 << 20, multipart_chunksize=8 << 20)
        extra = {"ContentType": "text/x-own", "Metadata": {"who": "me"}}
        client.upload_fileobj(io.BytesIO(body), "dev", "from ?ü+%", Config=config, ExtraArgs=extra)
        client.copy({"Bucket": "dev", "Key": "from ?ü+%"}, "dev", "to", Config=config)
        found = client.get_object(Bucket="dev", Key="to")
        assert found["Body"].read() == body
        assert client.head_object(Bucket="dev", Key="from ?ü+%")["ContentType"] == "text/x-own"

    await using(endpoint, work)
    assert (tmp_path / "to").read_bytes() == body
    assert list((tmp_path / ".nstance/uploads").iterdir()) == []


async def test_a_copied_part_is_the_range_that_was_asked_for(endpoint: str) -> None:
    def work(client: Client) -> None:
        etag = client.put_object(Bucket="dev", Key="a", Body=b"0123456789")["ETag"]
        upload = client.create_multipart_upload(Bucket="dev", Key="k")["UploadId"]

        def part(number: int, **options: Any) -> Any:
            arguments = {"Bucket": "dev", "Key": "k", "UploadId": upload, "CopySource": "dev/a", **options}
            return client.upload_part_copy(PartNumber=number, **arguments)["CopyPartResult"]

        parts = [part(1, CopySourceRange="bytes=2-4"), part(2), part(3, CopySourceRange="bytes=9-9")]
        for wrong in ("bytes=5-10", "bytes=4-2", "bytes=4-", "bytes=-4", "lines=1-2"):
            assert code_of(lambda: part(4, CopySourceRange=wrong)) == (400, "InvalidArgument")  # noqa: B023
        assert code_of(lambda: part(4, CopySourceIfNoneMatch=etag)) == (412, "PreconditionFailed")
        assert code_of(lambda: part(4, CopySource="dev/none")) == (404, "NoSuchKey")
        assert code_of(lambda: part(4, CopySource="none/a")) == (404, "NoSuchBucket")
        assert code_of(lambda: part(4, UploadId="0" * 32)) == (404, "NoSuchUpload")
        document = {"Parts": [{"PartNumber": n, "ETag": each["ETag"]} for n, each in enumerate(parts, start=1)]}
        client.complete_multipart_upload(Bucket="dev", Key="k", UploadId=upload, MultipartUpload=document)
        assert client.get_object(Bucket="dev", Key="k")["Body"].read() == b"23401234567899"

    await using(endpoint, work)


async def test_a_question_mark_in_the_source_is_part_of_its_key(endpoint: str) -> None:
    def work(client: Client) -> None:
        client.put_object(Bucket="dev", Key="a", Body=b"wrong")
        client.put_object(Bucket="dev", Key="a?b", Body=b"right")
        client.copy_object(Bucket="dev", Key="c", CopySource={"Bucket": "dev", "Key": "a?b"})
        assert client.get_object(Bucket="dev", Key="c")["Body"].read() == b"right"
        source = {"Bucket": "dev", "Key": "a", "VersionId": "7"}
        assert code_of(lambda: client.copy_object(Bucket="dev", Key="c", CopySource=source)) == (501, "NotImplemented")

    await using(endpoint, work)


async def test_dates_are_conditions_too(endpoint: str) -> None:
    def work(client: Client) -> None:
        client.put_object(Bucket="dev", Key="k", Body=b"1")
        head = client.head_object(Bucket="dev", Key="k")
        at, etag = head["LastModified"], head["ETag"]
        for read in (client.get_object, client.head_object):

            def ask(**conditions: Any) -> int:
                answer = read(Bucket="dev", Key="k", **conditions)  # noqa: B023
                return int(answer["ResponseMetadata"]["HTTPStatusCode"])

            assert ask(IfModifiedSince=at - HOUR) == ask(IfUnmodifiedSince=at) == 200
            assert code_of(lambda: ask(IfModifiedSince=at))[0] == 304
            assert code_of(lambda: ask(IfUnmodifiedSince=at - HOUR))[0] == 412
            assert ask(IfMatch=etag, IfUnmodifiedSince=at - HOUR) == 200  # an ETag says more than a date
            assert ask(IfNoneMatch='"x"', IfModifiedSince=at + HOUR) == 200

        def copy(**conditions: Any) -> Any:
            return client.copy_object(Bucket="dev", Key="c", CopySource="dev/k", **conditions)

        assert code_of(lambda: copy(CopySourceIfModifiedSince=at))[0] == 412
        assert code_of(lambda: copy(CopySourceIfUnmodifiedSince=at - HOUR))[0] == 412
        assert code_of(lambda: copy(CopySourceIfNoneMatch=etag))[0] == 412
        assert code_of(lambda: copy(CopySourceIfMatch='"x"'))[0] == 412
        assert code_of(lambda: client.head_object(Bucket="dev", Key="c"))[0] == 404
        copy(CopySourceIfMatch=etag, CopySourceIfModifiedSince=at - HOUR)

    await using(endpoint, work)


async def test_headers_stay_with_their_object(endpoint: str, tmp_path: pathlib.Path) -> None:
    extra = {"ContentType": "text/x-own", "ContentEncoding": "x-own", "CacheControl": "no-store"}

    def work(client: Client) -> None:
        def about(key: str) -> dict[str, Any]:
            head = client.head_object(Bucket="dev", Key=key)
            return {name: head[name] for name in (*extra, "Metadata") if head.get(name)}

        kept = {**extra, "Metadata": {"some-name": "a value"}}
        client.put_object(Bucket="dev", Key="k", Body=io.BytesIO(b"1"), **kept)
        assert about("k") == kept
        client.copy_object(Bucket="dev", Key="copy", CopySource="dev/k")
        assert about("copy") == kept
        other = {"ContentType": "text/other", "Metadata": {"b": "2"}}
        client.copy_object(Bucket="dev", Key="k", CopySource="dev/k", MetadataDirective="REPLACE", **other)
        assert about("k") == other
        (tmp_path / "k").write_bytes(b"by hand")
        assert about("k") == {"ContentType": "binary/octet-stream"}
        client.put_object(Bucket="dev", Key="copy", Body=b"2")
        assert about("copy") == {"ContentType": "binary/octet-stream"}
        for key in ("k", "copy"):
            client.delete_object(Bucket="dev", Key=key)
        assert list((tmp_path / ".nstance/headers").iterdir()) == []
        upload = client.create_multipart_upload(Bucket="dev", Key="k", **kept)["UploadId"]
        part = client.upload_part(Bucket="dev", Key="k", UploadId=upload, PartNumber=1, Body=b"1")["ETag"]
        document = {"Parts": [{"PartNumber": 1, "ETag": part}]}
        client.complete_multipart_upload(Bucket="dev", Key="k", UploadId=upload, MultipartUpload=document)
        assert about("k") == kept
        shown = client.get_object(Bucket="dev", Key="k", ResponseContentType="a/b", ResponseExpires=at())
        assert (shown["ContentType"], shown["CacheControl"]) == ("a/b", "no-store")
        big = lambda: client.put_object(Bucket="dev", Key="k", Body=b"", Metadata={"a": "b" * 2048})  # noqa: E731
        assert code_of(big) == (400, "InvalidArgument")

    def at() -> datetime.datetime:
        return datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)

    await using(endpoint, work)


async def test_what_no_file_can_keep_is_refused(endpoint: str) -> None:
    def work(client: Client) -> None:
        def put(**options: Any) -> tuple[int, str]:
            return code_of(lambda: client.put_object(Bucket="dev", Key="k", Body=b"1", **options))

        assert put(Tagging="a=b") == (501, "NotImplemented")
        assert put(SSECustomerAlgorithm="AES256", SSECustomerKey="k" * 32) == (501, "NotImplemented")
        assert put(WebsiteRedirectLocation="/x") == (501, "NotImplemented")
        assert put(ObjectLockLegalHoldStatus="ON") == (501, "NotImplemented")
        assert put(GrantRead="id=1") == (501, "NotImplemented")
        assert put(ACL="public-read") == (400, "AccessControlListNotSupported")
        assert code_of(lambda: client.head_object(Bucket="dev", Key="k"))[0] == 404
        client.put_object(Bucket="dev", Key="k", Body=b"1", ACL="private")
        assert client.get_object_tagging(Bucket="dev", Key="k")["TagSet"] == []
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


async def test_uploads_and_their_parts_are_listed_by_pages(endpoint: str) -> None:
    def work(client: Client) -> None:
        ids = {}
        for key in ("b/1 ü", "a+%", "b/2", "b/2"):
            upload = client.create_multipart_upload(Bucket="dev", Key=key)["UploadId"]
            ids[upload] = key
        expected = sorted((key, upload) for upload, key in ids.items())

        def listed(**options: Any) -> list[tuple[str, str]]:
            pages = client.get_paginator("list_multipart_uploads").paginate(Bucket="dev", **options)
            return [(each["Key"], each["UploadId"]) for page in pages for each in page.get("Uploads", [])]

        for size in (1, 2, 3, 1000):
            assert listed(PaginationConfig={"PageSize": size}) == expected
        assert listed(Prefix="b/", EncodingType="url")[0][1] == expected[1][1]
        assert listed(Prefix="b/") == expected[1:]
        key, upload = expected[0]
        place = {"Bucket": "dev", "Key": key, "UploadId": upload}
        for number in (1, 2, 3):
            client.upload_part(**place, PartNumber=number, Body=b"x" * number)
        for size in (1, 2, 3):
            pages = client.get_paginator("list_parts").paginate(**place, PaginationConfig={"PageSize": size})
            assert [part["Size"] for page in pages for part in page["Parts"]] == [1, 2, 3]
        for key, upload in expected:
            client.abort_multipart_upload(Bucket="dev", Key=key, UploadId=upload)
        assert listed() == []
        bad = lambda: client.create_multipart_upload(Bucket="dev", Key="../x")  # noqa: E731
        assert code_of(bad) == (400, "InvalidArgument")

    await using(endpoint, work)
