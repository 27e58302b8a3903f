"""Progress of a wait: counts, and an estimate of the time that is left."""

import pytest

from nstance.admin import output
from nstance.admin.shard.waiting import BAR_WIDTH, Progress


def test_the_estimate_follows_from_the_steps_so_far() -> None:
    progress = Progress()
    assert progress.update(20, now=100.0) == f"[{'.' * BAR_WIDTH}] 0/20"
    assert progress.update(15, now=110.0) == "[#####...............] 5/20, about 30s left"
    assert progress.update(5, now=130.0) == "[###############.....] 15/20, about 10s left"
    assert progress.update(0, now=140.0) == f"[{'#' * BAR_WIDTH}] 20/20"


def test_more_work_than_before_starts_the_count_again() -> None:
    progress = Progress()
    progress.update(4, now=0.0)
    progress.update(2, now=10.0)
    assert progress.update(8, now=20.0).endswith(" 0/8")
    assert progress.update(4, now=30.0).endswith(" 4/8, about 10s left")


def test_before_the_first_step_the_server_s_estimate_counts_down() -> None:
    progress = Progress()
    assert progress.update(4, now=0.0, expected=90.0).endswith(" 0/4, about 1m30s left")
    assert progress.update(4, now=30.0, expected=90.0).endswith(" 0/4, about 1m left")
    assert progress.update(4, now=95.0, expected=90.0).endswith(" 0/4")  # it took longer: nothing is claimed
    assert Progress().update(0, now=0.0) == ""


def test_in_a_pipe_an_estimate_alone_makes_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    line = output.ProgressLine()
    line.show("web 1/3 ready", "[..] 0/2")
    line.show("web 1/3 ready", "[..] 0/2, about 5s left")
    line.show("web 2/3 ready", "[#.] 1/2, about 4s left")
    line.clear()
    assert capsys.readouterr().err.splitlines() == ["[..] 0/2  web 1/3 ready", "[#.] 1/2, about 4s left  web 2/3 ready"]
