"""Whether unresponsive agents are the agents' fault or ours."""

from typing import Any

import pytest

from nstance.core.liveness import Fleet, Verdict, can_return, extend_grace, judge_silence, reconnect_grace

NOW, SUSPECT_AFTER = 1000.0, 10.0


def fleet(**fields: Any) -> Fleet:
    known: dict[str, Any] = {
        "now": NOW,
        "monotonic": 50.0,
        "listening_since": 0.0,
        "reconnect_grace": 10.0,
        "agents": 10,
    }
    return Fleet(**known | {"disconnected": (), "connected": (), "missing": 0} | fields)


@pytest.mark.parametrize(
    ("fields", "before", "verdict"),
    [
        pytest.param({"disconnected": [NOW - 7.0] * 3}, False, Verdict(False, False, 3), id="less than a third"),
        pytest.param({"disconnected": [NOW - 7.0] * 4}, False, Verdict(True, False, 4), id="more than a third"),
        pytest.param({"disconnected": [NOW - 6.0] * 4}, False, Verdict(False, True, 0), id="asked, may still answer"),
        pytest.param({"connected": [(NOW - 7.0, 43.0)] * 4}, False, Verdict(True, False, 4), id="open connections"),
        pytest.param({"connected": [(NOW - 7.0, 49.0)] * 4}, False, Verdict(False, False, 0), id="bytes came since"),
        pytest.param({"missing": 4}, False, Verdict(True, False, 4), id="not back in this term"),
        pytest.param(
            {"missing": 4, "listening_since": NOW - 7.9}, False, Verdict(False, False, 0), id="may be back soon"
        ),
        pytest.param(
            {"disconnected": [0.0] * 9, "listening_since": NOW - 4.0},
            False,
            Verdict(False, False, 0),
            id="deaf till now",
        ),
        pytest.param({"disconnected": [NOW - 7.0] * 2}, True, Verdict(True, False, 2), id="not over yet"),
        pytest.param({"disconnected": [NOW - 7.0]}, True, Verdict(False, False, 1), id="over"),
    ],
)
def test_mass_silence(fields: dict[str, Any], before: bool, verdict: Verdict) -> None:
    assert judge_silence(fleet(**fields), SUSPECT_AFTER, before=before) == verdict


@pytest.mark.parametrize(
    ("expires", "can"), [(None, True), (NOW, True), (NOW - 59.0, True), (NOW - 60.0, False), (NOW - 500.0, False)]
)
def test_an_expired_certificate_opens_no_connection(expires: float | None, can: bool) -> None:
    assert can_return(expires, steady=NOW, wall=NOW + 1000.0) is can
    assert can_return(expires, steady=NOW + 1000.0, wall=NOW) is can


def test_the_grace_grows_with_the_fleet_and_with_late_agents() -> None:
    assert (reconnect_grace(0), reconnect_grace(3000)) == (10.0, 30.0)
    assert [extend_grace(15.0, elapsed) for elapsed in (1.0, 20.0, 1000.0)] == [15.0, 30.0, 300.0]
