"""Keys: which points are accepted, judged against slow textbook arithmetic on the curve."""

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st

from nstance.clock import SystemRng
from nstance.pki import keys

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
Point = tuple[int, int]
NEUTRAL: Point = (0, 1)


def add(a: Point, b: Point) -> Point:
    (x1, y1), (x2, y2) = a, b
    k = D * x1 * x2 * y1 * y2 % P
    return ((x1 * y2 + x2 * y1) * pow(1 + k, -1, P) % P, (y1 * y2 + x1 * x2) * pow(1 - k, -1, P) % P)


def multiply(n: int, point: Point) -> Point:
    result = NEUTRAL
    while n:
        if n & 1:
            result = add(result, point)
        point = add(point, point)
        n >>= 1
    return result


def decode(raw: bytes) -> Point | None:
    """None unless canonical and on the curve."""
    number = int.from_bytes(raw, "little")
    sign, y = number >> 255, number & (1 << 255) - 1
    if y >= P:
        return None
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    if (x * x - square) % P:
        x = x * pow(2, (P - 1) // 4, P) % P
    if (x * x - square) % P or (x == 0 and sign):
        return None
    return (P - x if x & 1 != sign else x, y)


def encode(point: Point) -> bytes:
    x, y = point
    return (y | (x & 1) << 255).to_bytes(32, "little")


def torsion() -> list[Point]:
    """The eight points whose order divides 8."""
    y = 2
    while True:
        y += 1
        point = decode(y.to_bytes(32, "little"))
        generator = multiply(L, point) if point else NEUTRAL
        if point and multiply(4, generator) != NEUTRAL:
            return [multiply(n, generator) for n in range(8)]


SMALL = torsion()
HONEST = [keys.public_bytes(Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32)) for n in range(6)]


def accepted(raw: bytes) -> bool:
    try:
        keys.check_point(raw)
    except keys.UnacceptableKeyError:
        return False
    return True


def test_there_are_eight_small_points() -> None:
    assert len(set(SMALL)) == 8
    assert NEUTRAL in SMALL


@pytest.mark.parametrize("raw", HONEST)
def test_honest_keys_are_accepted(raw: bytes) -> None:
    assert accepted(raw)


@pytest.mark.parametrize("point", SMALL)
def test_small_order_is_refused_in_every_spelling(point: Point) -> None:
    raw = encode(point)
    flipped = bytes([*raw[:31], raw[31] ^ 0x80])
    assert not accepted(raw)
    assert not accepted(flipped)
    if point[1] + P < 1 << 255:
        second = point[1] + P
        assert not accepted(second.to_bytes(32, "little"))
        assert not accepted((second | 1 << 255).to_bytes(32, "little"))


@pytest.mark.parametrize("small", SMALL[1:])
def test_mixed_order_is_refused(small: Point) -> None:
    for raw in HONEST:
        point = decode(raw)
        assert point is not None
        assert not accepted(encode(add(point, small)))


def test_every_non_canonical_y_is_refused() -> None:
    for y in range(P, 1 << 255):
        for raw in (y, y | 1 << 255):
            with pytest.raises(keys.UnacceptableKeyError, match="canonically"):
                keys.check_point(raw.to_bytes(32, "little"))


def test_no_y_of_the_twisted_curve_is_accepted() -> None:
    twisted = [raw for n in range(600) if decode(raw := n.to_bytes(32, "little")) is None]
    assert len(twisted) > 200
    assert not any(accepted(raw) for raw in twisted)
    # Multiplying with 5L - 1 gives plus or minus the same point there only if the twist's prime divides 5L or 5L - 2.
    prime = (2 * P + 2 - 8 * L) // 4
    assert 5 * L % prime != 0
    assert (5 * L - 2) % prime != 0


@pytest.mark.parametrize("raw", [b"", b"\1" * 31, b"\1" * 33, bytes(32)])
def test_wrong_length_and_zero_are_refused(raw: bytes) -> None:
    assert not accepted(raw)


@given(st.binary(min_size=32, max_size=32))
def test_the_fast_check_agrees_with_the_textbook(raw: bytes) -> None:
    point = decode(raw)
    full = point is not None and point != NEUTRAL and multiply(L, point) == NEUTRAL
    assert accepted(raw) == full


@given(st.binary(min_size=32, max_size=32))
def test_every_private_key_gives_an_accepted_public_key(seed: bytes) -> None:
    assert accepted(keys.public_bytes(Ed25519PrivateKey.from_private_bytes(seed)))


def spki(key: object) -> bytes:
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined, no-any-return]


def test_pem_round_trip() -> None:
    key = keys.generate(SystemRng())
    raw = keys.public_bytes(key)
    assert keys.public_key_from_pem(keys.public_to_pem(raw)) == raw
    assert keys.public_bytes(keys.private_key_from_pem(keys.private_to_pem(key))) == raw


@pytest.mark.parametrize(
    "pem",
    [
        pytest.param(spki(rsa.generate_private_key(65537, 2048).public_key()), id="rsa"),
        pytest.param(spki(ec.generate_private_key(ec.SECP256R1()).public_key()), id="p-256"),
        pytest.param(spki(ed448.Ed448PrivateKey.generate().public_key()), id="ed448"),
        pytest.param(keys.public_to_pem(encode(SMALL[1])), id="small order"),
        pytest.param(keys.private_to_pem(Ed25519PrivateKey.from_private_bytes(bytes(32))), id="private"),
        pytest.param("", id="empty"),
        pytest.param("-----BEGIN PUBLIC KEY-----\n" + "A" * 2000, id="long"),
        pytest.param("\ud800", id="not unicode"),
    ],
)
def test_other_keys_are_refused(pem: str | bytes) -> None:
    with pytest.raises(keys.UnacceptableKeyError):
        keys.public_key_from_pem(pem)


@given(st.binary(max_size=300))
def test_no_input_breaks_the_reader(data: bytes) -> None:
    for read in (keys.public_key_from_pem, keys.private_key_from_pem):
        with pytest.raises(keys.UnacceptableKeyError):
            read(data)


def test_a_second_spelling_of_a_signature_is_refused() -> None:
    """The library refuses S + L, which plain verification would accept."""
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    signature = key.sign(b"message")
    public = Ed25519PublicKey.from_public_bytes(keys.public_bytes(key))
    public.verify(signature, b"message")
    second = signature[:32] + (int.from_bytes(signature[32:], "little") + L).to_bytes(32, "little")
    with pytest.raises(InvalidSignature):
        public.verify(second, b"message")
