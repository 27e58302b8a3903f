"""The role of an operator in its certificate, its nonce and its registration."""

import dataclasses
import json

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from nstance.authority import errors, registration
from nstance.authority.registration import Registration
from nstance.model.ids import ClusterId, InstanceId, OperatorId, TenantId
from nstance.model.roles import Role, lowest
from nstance.objects.port import Key
from nstance.pki import ca, keys, names, nonce, peer
from nstance.sim.rng import SeededRng

NOW = 1_800_000_000.0
RNG = SeededRng(1)
CLUSTER, TENANT = ClusterId("prod"), TenantId("acme")
CA = ca.new_ca(CLUSTER, now=NOW, rng=RNG)
KEY = keys.generate(RNG)
PUBLIC = keys.public_bytes(KEY)
OPERATOR = OperatorId("opr-01jw51srryegh9snf9cmeh3k4q")
REGISTERED = Registration(
    cluster=CLUSTER, tenant=TENANT, operator=OPERATOR, public_key=PUBLIC, serial=7, issued=1, expires=9
)


def certificate(role: Role) -> x509.Certificate:
    who = names.Operator(CLUSTER, TENANT, OPERATOR, role)
    return ca.load_certificate(CA.issue_client(who, PUBLIC, serial=7, issued=NOW, expires=NOW + 3600).pem)


def has_role(found: x509.Certificate) -> bool:
    return any(each.oid == ca.OPERATOR_ROLE_EXTENSION for each in found.extensions)


def test_each_role_allows_what_the_lower_ones_do() -> None:
    order = [Role.VIEWER, Role.DRAINER, Role.OPERATOR, Role.ADMIN]
    for position, role in enumerate(order):
        assert [each for each in order if role.allows(each)] == order[: position + 1]
        assert lowest(role, Role.ADMIN) is lowest(Role.ADMIN, role) is role


@pytest.mark.parametrize("role", Role)
def test_a_certificate_carries_the_role_and_without_one_it_is_an_operator(role: Role) -> None:
    issued = certificate(role)
    found = peer.identify(issued.public_bytes(Encoding.DER))
    assert isinstance(found, names.Operator)
    assert found.role is role
    assert found == names.Operator(CLUSTER, TENANT, OPERATOR)  # who it is does not depend on what it may do
    assert has_role(issued) is (role is not Role.OPERATOR)


@pytest.mark.parametrize("text", ["root", "", "Viewer", "viewer "])
@pytest.mark.parametrize("is_operator", [True, False])
def test_an_unknown_role_or_one_of_an_agent_makes_a_certificate_unusable(text: str, is_operator: bool) -> None:
    agent = names.Agent(CLUSTER, TENANT, InstanceId("web-01jw51srryegh9snf9cmeh3k4q"))
    who = names.Operator(CLUSTER, TENANT, OPERATOR) if is_operator else agent
    issued = ca.load_certificate(CA.issue_client(who, PUBLIC, serial=7, issued=NOW, expires=NOW + 3600).pem)
    builder = x509.CertificateBuilder(
        issued.issuer,
        issued.subject,
        issued.public_key(),  # type: ignore[arg-type]
        issued.serial_number,
        issued.not_valid_before_utc,
        issued.not_valid_after_utc,
    )
    for extension in issued.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    marker = x509.UnrecognizedExtension(ca.OPERATOR_ROLE_EXTENSION, ca.utf8_string(text if is_operator else "viewer"))
    forged = builder.add_extension(marker, critical=False).sign(CA.key, None)
    with pytest.raises(peer.IdentityError, match="role"):
        peer.identify(forged.public_bytes(Encoding.DER))


@pytest.mark.parametrize("role", Role)
def test_a_nonce_carries_the_role_and_only_if_it_is_no_operator(role: Role) -> None:
    claims = nonce.OperatorClaims(
        jti="0" * 32, cluster=CLUSTER, tenant=TENANT, issued=int(NOW), expires=int(NOW) + 60, role=role
    )
    token = nonce.sign(claims, KEY, "k1")
    assert nonce.verify_operator(token, keys={"k1": PUBLIC}, now=NOW, cluster=CLUSTER) == claims
    plain = nonce.sign(dataclasses.replace(claims, role=Role.OPERATOR), KEY, "k1")
    assert (token == plain) is (role is Role.OPERATOR)


@pytest.mark.parametrize("role", Role)
def test_a_registration_keeps_the_role_and_programs_without_roles_reject_it(role: Role) -> None:
    kept = dataclasses.replace(REGISTERED, role=role)
    body = registration.dump(kept)
    assert registration.load(body, key=Key("k"), cluster=CLUSTER) == kept
    document = json.loads(body)
    # The first version of the format had no role, and its readers take every registration for an operator's.
    assert document["v"] == (1 if role is Role.OPERATOR else 2)
    assert ("role" in document) is (role is not Role.OPERATOR)


@pytest.mark.parametrize("role", ["root", None, 7])
def test_a_registration_with_an_unknown_role_is_damaged(role: object) -> None:
    document = {**json.loads(registration.dump(dataclasses.replace(REGISTERED, role=Role.VIEWER))), "role": role}
    with pytest.raises(errors.UnreadableError):
        registration.load(json.dumps(document).encode(), key=Key("k"), cluster=CLUSTER)
