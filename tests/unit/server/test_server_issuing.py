"""Nonces and certificates while a clock is wrong."""

import pytest

from nstance.clock import SystemClock
from nstance.model.ids import GroupName, InstanceId, TenantId
from nstance.model.instance import Instance, State
from nstance.pki import nonce
from nstance.server.identity.issuer import Issuer
from nstance.sim.desired_groups import SHARD
from nstance.sim.rng import SeededRng
from nstance.sim.server import authority

HOUR, DAY = 3600.0, 86_400.0
NOW = 1.7e9
LIFE = 300.0


class Clocks(SystemClock):
    """A server's clocks, off by some seconds."""

    def __init__(self, wall: float, steady: float, later: float) -> None:
        super().__init__()
        self._wall, self._off, self._later = wall, steady, later

    def wall(self) -> float:
        return NOW + self._later + self._wall

    def steady(self) -> float:
        return NOW + self._later + self._off


def issuer(wall: float = 0.0, steady: float = 0.0, *, later: float = 0.0) -> Issuer:
    return Issuer(authority(), shard=SHARD, clock=Clocks(wall, steady, later), rng=SeededRng("issuing"))


def token(made_by: Issuer) -> str:
    return made_by.token(
        Instance(
            id=InstanceId("web-01jw51srryegh9snf9cmeh3k4q"),
            tenant=TenantId("default"),
            group=GroupName("web"),
            state=State.PENDING,
            created=NOW,
            nonce=made_by.new_nonce(LIFE),
        )
    )


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_jump_of_the_wall_clock_expires_no_nonce(jump: float) -> None:
    assert issuer(jump, later=LIFE).verify(token(issuer()))
    assert issuer(later=LIFE).verify(token(issuer(jump)))


@pytest.mark.parametrize("off", [-HOUR, HOUR])
def test_a_clock_corrected_after_the_start_expires_no_nonce(off: float) -> None:
    assert issuer(0.0, off, later=LIFE).verify(token(issuer()))
    assert issuer(later=LIFE).verify(token(issuer(0.0, off)))


@pytest.mark.parametrize("later", [LIFE + nonce.LEEWAY_SECONDS, -nonce.LEEWAY_SECONDS - 1.0])
def test_a_nonce_that_is_out_of_date_by_both_clocks_is_rejected(later: float) -> None:
    with pytest.raises(nonce.InvalidNonceError):
        issuer(later=later).verify(token(issuer()))


@pytest.mark.parametrize(
    ("wall", "steady", "expires"),
    [
        pytest.param(0.0, 0.0, 30 * DAY, id="right"),
        pytest.param(HOUR, 0.0, 30 * DAY, id="set forward: it is valid at once"),
        pytest.param(-HOUR, 0.0, 30 * DAY - HOUR, id="set back"),
        pytest.param(0.0, -NOW, 15 * DAY, id="started in 1970 and corrected: it is not expired"),
    ],
)
def test_a_certificate_is_valid_now(wall: float, steady: float, expires: float) -> None:
    assert issuer(wall, steady).new_certificate(b"k", life=30 * DAY).certificate_expires == NOW + expires
