from pathlib import Path

from nstance.agent import health

STAT = "cpu  100 0 50 800 50 0 0 0 30 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"


def test_ticks_leave_out_waiting_and_count_guests_once() -> None:
    assert health.parse_ticks(STAT) == health.Ticks(150, 1000)


def test_cpu_is_the_share_between_two_looks() -> None:
    assert health.cpu_percent(health.Ticks(150, 1000), health.Ticks(200, 1100)) == 50.0
    assert health.cpu_percent(health.Ticks(150, 1000), health.Ticks(150, 1000)) == 0.0


def test_memory_is_what_is_not_available() -> None:
    assert health.parse_memory_percent("MemTotal: 1000 kB\nMemFree: 10 kB\nMemAvailable: 250 kB\n") == 75.0


def test_a_machine_without_proc_reports_zeros(tmp_path: Path) -> None:
    looker = health.VitalsReader(proc=tmp_path, disk=tmp_path / "nowhere")
    assert looker.read() == health.Vitals()


def test_a_look_at_a_machine(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text(STAT)
    (tmp_path / "uptime").write_text("12.5 20.0\n")
    (tmp_path / "meminfo").write_text("MemTotal: 4 kB\nMemAvailable: 3 kB\n")
    (tmp_path / "loadavg").write_text("0.75 0.1 0.1 1/100 4242\n")
    looker = health.VitalsReader(proc=tmp_path, disk=tmp_path)
    seen = looker.read()
    assert (seen.uptime_seconds, seen.cpu_percent, seen.memory_percent, seen.load1) == (12.5, 15.0, 25.0, 0.75)
    (tmp_path / "stat").write_text("cpu  200 0 50 800 50 0 0 0\n")
    assert looker.read().cpu_percent == 100.0
