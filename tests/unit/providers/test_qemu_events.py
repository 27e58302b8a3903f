"""Why a VM ended, from the events that QEMU wrote."""

import json
from pathlib import Path

import pytest

from nstance.providers.qemu import events


def write(folder: Path, *lines: object) -> None:
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n"
    (folder / events.OUTPUT).write_text(text)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        ([], "QEMU ended without a word: it was killed or crashed"),
        ([{"event": "RESET"}], "QEMU ended without a word: it was killed or crashed"),
        ([{"event": "SHUTDOWN", "data": {"reason": "guest-shutdown"}}], "the guest powered off"),
        ([{"event": "SHUTDOWN", "data": {"reason": "new-reason"}}], "QEMU ended: new-reason"),
        ([{"event": "GUEST_PANICKED", "data": {"action": "pause"}}, {"event": "STOP"}], "the guest's kernel panicked"),
        (
            [{"event": "GUEST_PANICKED"}, {"event": "SHUTDOWN", "data": {"reason": "guest-panic"}}],
            "the guest's kernel panicked",
        ),
        (
            [{"event": "SHUTDOWN", "data": {"reason": "host-signal"}}, '{"event": "SHU'],
            "QEMU was terminated by a signal",
        ),
        ([{"event": "SHUTDOWN", "data": "odd"}], "QEMU ended: "),
        (["[1]", "5", '"text"'], "QEMU ended without a word: it was killed or crashed"),
    ],
)
def test_end_reason(lines: list[object], reason: str, tmp_path: Path) -> None:
    write(tmp_path, *lines)
    assert events.end_reason(tmp_path) == reason


def test_no_file_and_a_cut_one(tmp_path: Path) -> None:
    assert events.read(tmp_path) == []
    old = b'{"event": "RESET"}\n' * 10_000
    (tmp_path / events.OUTPUT).write_bytes(
        bytes(1000) + old + b'{"event": "SHUTDOWN", "data": {"reason": "guest-panic"}}\n'
    )
    assert len(events.read(tmp_path)) < 4000, "only the newest part is read"
    assert events.end_reason(tmp_path) == "the guest's kernel panicked"
