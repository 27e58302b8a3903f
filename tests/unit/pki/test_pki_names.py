import pytest
from hypothesis import given
from hypothesis import strategies as st

from nstance.model import ids
from nstance.model.ids import ClusterId, InstanceId, Kind, OperatorId, ServerId, ShardId, TenantId
from nstance.pki import names

NAME = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", fullmatch=True).filter(ids.is_name)
UUIDS = st.integers(0, (1 << 128) - 1)
INSTANCE = st.builds(
    ids.instance_id, st.from_regex("[a-z]{3}", fullmatch=True).filter(lambda k: k != "opr").map(Kind), UUIDS
)
IDENTITY = st.one_of(
    st.builds(names.Server, NAME.map(ClusterId), NAME.map(ShardId), NAME.map(ServerId)),
    st.builds(names.Agent, NAME.map(ClusterId), NAME.map(TenantId), INSTANCE),
    st.builds(
        names.Operator,
        NAME.map(ClusterId),
        NAME.map(TenantId),
        UUIDS.map(lambda u: OperatorId(ids.instance_id(ids.OPERATOR_KIND, u))),
    ),
)
ETC = "etc-01jw51srryegh9snf9cmeh3k4q"
OPR = "opr-01jw51srryegh9snf9cmeh3k4q"


@given(IDENTITY)
def test_round_trip(identity: names.Identity) -> None:
    assert names.parse_uri(names.uri(identity)) == identity


@given(st.text(max_size=200) | st.from_regex(r"nstance://[^/]*/(server|agent|operator)/[^/]*/[^/]*", fullmatch=True))
def test_whatever_is_parsed_is_the_only_spelling(text: str) -> None:
    try:
        identity = names.parse_uri(text)
    except names.IdentityError:
        return
    assert names.uri(identity) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nstance://",
        f"nstance://prod/agent/default/{ETC}/",
        f"nstance://prod/agent/default//{ETC}",
        f"NSTANCE://prod/agent/default/{ETC}",
        f"nstance:/prod/agent/default/{ETC}",
        f"nstance://prod:1/agent/default/{ETC}",
        f"nstance://user@prod/agent/default/{ETC}",
        f"nstance://prod/agent/default/{ETC}?x=1",
        f"nstance://prod/agent/default/{ETC}#x",
        f"nstance://prod/agent/default/{ETC}\n",
        f"nstance://prod/agent/default/{ETC}\0",
        f"nstance://prod/agent/def%61ult/{ETC}",
        f"nstance://prod/agent/../{ETC}",
        f"nstance://prod/agent/dеfault/{ETC}",  # a Cyrillic letter
        f"nstance://prod/agent/de--fault/{ETC}",
        f"nstance://prod/agent/{'a' * 33}/{ETC}",
        f"nstance://prod/agent/default/{ETC.upper()}",
        f"nstance://prod/agent/default/{OPR}",
        f"nstance://prod/operator/default/{ETC}",
        f"nstance://prod/admin/default/{ETC}",
        f"nstance://prod/AGENT/default/{ETC}",
        "nstance://prod/agent/default/etc-01jw51srryegh9snf9cmeh3k4",
        "nstance://prod/agent/default/etc-81jw51srryegh9snf9cmeh3k4q",  # beyond 128 bits
        "nstance://prod/ca",
        "nstance://prod/server/dev-1/" + "s" * 10_000,
    ],
)
def test_other_spellings_are_refused(text: str) -> None:
    with pytest.raises(names.IdentityError):
        names.parse_uri(text)


@pytest.mark.parametrize(
    "identity",
    [
        names.Agent(ClusterId("prod"), TenantId("a/b"), InstanceId(ETC)),
        names.Agent(ClusterId("prod"), TenantId("default"), InstanceId(OPR)),
        names.Operator(ClusterId("prod"), TenantId("default"), OperatorId(ETC)),
        names.Server(ClusterId("prod"), ShardId("dev-1"), ServerId("x/../y")),
    ],
)
def test_nothing_is_written_that_could_not_be_read(identity: names.Identity) -> None:
    with pytest.raises(names.IdentityError):
        names.uri(identity)


@given(NAME)
def test_authority_round_trip(cluster: str) -> None:
    assert names.parse_authority_uri(names.authority_uri(ClusterId(cluster))) == cluster


@pytest.mark.parametrize(
    "text", ["nstance://prod", "nstance:///ca", "prod", "nstance://a/b/ca", "nstance://prod/ca/ca"]
)
def test_other_authorities_are_refused(text: str) -> None:
    with pytest.raises(names.IdentityError):
        names.parse_authority_uri(text)
