"""AWS's wire formats, errors and endpoints."""

import botocore.session
import pytest

from nstance.aws import encoding, endpoints
from nstance.aws.errors import AwsError


def test_form_parameters() -> None:
    params = {"Filter": [{"Name": "a", "Value": ["b", "c"]}], "DryRun": False, "None": None, "Count": 1, "Empty": []}
    assert encoding.form("Do", "1", params) == (
        b"Action=Do&Version=1&Filter.1.Name=a&Filter.1.Value.1=b&Filter.1.Value.2=c&DryRun=false&Count=1"
    )
    assert b"Targets.member.1.Id=i" in encoding.form("Do", "1", {"Targets": [{"Id": "i"}]}, list_infix=".member")


def test_xml_lists_with_one_entry_with_none_and_structures() -> None:
    text = b"<r xmlns='x'><many><item><a>1</a></item></many><none/><one><a>2</a></one></r>"
    answer = encoding.parse_xml(text)
    assert encoding.entries(answer, "many") == [{"a": "1"}]
    assert encoding.entries(answer, "none") == encoding.entries(answer, "absent") == []
    assert answer["one"] == {"a": "2"}
    with pytest.raises(ValueError, match="expected XML"):
        encoding.parse_xml(b"<html><body>502 Bad Gateway")


@pytest.mark.parametrize(
    "text",
    [
        b"<Response><Errors><Error><Code>C</Code><Message>M</Message></Error></Errors><RequestID>R</RequestID></Response>",
        b"<ErrorResponse><Error><Type>Sender</Type><Code>C</Code><Message>M</Message></Error>"
        b"<RequestId>R</RequestId></ErrorResponse>",
        b'{"__type": "com.amazonaws.x#C:http://x", "message": "M", "RequestId": "R"}',
    ],
    ids=["ec2", "others", "json"],
)
def test_errors_of_all_services(text: bytes) -> None:
    assert encoding.parse_error(text) == ("C", "M", "R")


@pytest.mark.parametrize("text", [b"", b"<html><body>", b"<html><body>no</body></html>", b"[]", b'{"a": 1}'])
def test_what_is_no_error_of_aws(text: bytes) -> None:
    assert encoding.parse_error(text)[0] == ""


@pytest.mark.parametrize(
    ("code", "status", "is_throttled", "is_denied", "is_expired", "is_server_fault"),
    [
        ("RequestLimitExceeded", 503, True, False, False, False),
        ("Throttling", 400, True, False, False, False),
        ("UnauthorizedOperation", 403, False, True, False, False),
        ("AccessDeniedException", 400, False, True, False, False),
        ("ExpiredToken", 403, False, False, True, False),
        ("AuthFailure", 401, False, False, True, False),
        ("AuthFailure", 400, False, False, False, False),
        ("InvalidSignatureException", 400, False, False, True, False),
        ("RequestThrottledException", 400, True, False, False, False),
        ("InternalError", 500, False, False, False, True),
        ("InvalidAMIID.NotFound", 400, False, False, False, False),
    ],
)
def test_what_an_error_means(
    code: str, status: int, is_throttled: bool, is_denied: bool, is_expired: bool, is_server_fault: bool
) -> None:
    error = AwsError(code, "m", status=status)
    assert (error.is_throttled, error.is_denied, error.is_expired, error.is_server_fault) == (
        is_throttled,
        is_denied,
        is_expired,
        is_server_fault,
    )


def test_the_domains_of_all_partitions_are_the_sdks() -> None:
    found = {}
    for partition in botocore.session.get_session().get_data("endpoints")["partitions"]:
        found |= dict.fromkeys(partition["regions"], partition["dnsSuffix"])
    assert len(found) > 30
    for region, suffix in found.items():
        assert endpoints.endpoint("ec2", region, environment={}) == f"https://ec2.{region}.{suffix}"


def test_endpoints() -> None:
    env = {"AWS_ENDPOINT_URL": "http://all/", "AWS_ENDPOINT_URL_EC2": "http://one"}
    assert endpoints.endpoint("ec2", "eu-west-1", environment={}) == "https://ec2.eu-west-1.amazonaws.com"
    assert endpoints.endpoint("ec2", "cn-north-1", environment={}) == "https://ec2.cn-north-1.amazonaws.com.cn"
    assert endpoints.endpoint("ec2", "r", environment=env) == "http://one"
    assert endpoints.endpoint("ssm", "r", environment=env) == "http://all"
    assert endpoints.endpoint("ssm", "r", configured="http://mine", environment=env) == "http://mine"
    ignored = {**env, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS": "true"}
    assert endpoints.endpoint("ssm", "r", environment=ignored) == "https://ssm.r.amazonaws.com"
