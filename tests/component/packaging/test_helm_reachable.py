"""The script that `helm test` runs in a pod."""

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from component.packaging.references import ROOT

SCRIPT = ROOT / "deploy" / "helm" / "checks" / "reachable.py"
ANSWERS = {
    "/metrics": (200, b"nstance_operator_leader 1\n"),
    "/validate": (405, b""),
    "/other/metrics": (200, b"something_else 1\n"),
    "/broken": (503, b""),
}


class Operator(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Operator) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def run(*addresses: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SCRIPT.read_text(), *addresses]
    return subprocess.run(command, text=True, capture_output=True, timeout=60, check=False)


def test_an_operator_that_answers_passes(address: str) -> None:
    done = run(f"{address}/validate", f"{address}/metrics")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("answers") == 2


@pytest.mark.parametrize("path", ["/other/metrics", "/broken"])
def test_a_wrong_answer_fails(path: str, address: str) -> None:
    done = run(f"{address}/metrics", address + path)
    assert done.returncode == 1
    assert f"{path}: unexpected answer" in done.stderr


def test_an_unreachable_service_fails(address: str) -> None:
    done = run("http://127.0.0.1:1/metrics")
    assert done.returncode == 1
    assert "127.0.0.1:1/metrics" in done.stderr
