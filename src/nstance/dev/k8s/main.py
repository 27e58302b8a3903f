"""nstance-dev-k8s: a Kubernetes API server over JSON files, for development on one machine."""

import argparse
import asyncio
import contextlib
import pathlib
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from importlib import metadata

from aiohttp import web

from nstance import clock as clocks
from nstance.dev import loopback
from nstance.dev.k8s import watching
from nstance.dev.k8s.files import Files
from nstance.dev.k8s.service import Service
from nstance.kube.api import server
from nstance.telemetry import logs

GRACE = 1.0  # seconds that running requests get when the server ends

KUBECONFIG = """\
apiVersion: v1
kind: Config
current-context: dev-k8s
clusters: [{{name: dev-k8s, cluster: {{server: "http://127.0.0.1:{port}"}}}}]
users: [{{name: dev-k8s, user: {{}}}}]
contexts: [{{name: dev-k8s, context: {{cluster: dev-k8s, user: dev-k8s, namespace: default}}}}]
"""

EXAMPLES = """\
examples:
  nstance-dev-k8s                                       files in temp/dev-k8s, on port 6443
  nstance-dev-k8s --dir /tmp/cluster --port 7443
  nstance-dev-k8s --kubeconfig temp/kubeconfig          also write a kubeconfig that leads here

use it:
  kubectl --server http://127.0.0.1:6443 get nodes
  $EDITOR temp/dev-k8s/machinepools/default/nstance-test.json
"""


@contextlib.asynccontextmanager
async def serving(folder: pathlib.Path, *, port: int, window: int = server.WATCH_WINDOW) -> AsyncIterator[int]:
    """Serves until the block ends and gives the port; 0 asks for a free one. Raises OSError when it is taken."""
    clock = clocks.SystemClock()
    sockets = loopback.listen(port)
    try:
        files = Files(folder, clock, clocks.SystemRng(), window=window)
        service = Service(files, clock)
        runner = web.ServerRunner(web.Server(service.handle), shutdown_timeout=GRACE)
        await runner.setup()
    except BaseException:
        for each in sockets:
            each.close()
        raise
    ending = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(watching.follow(files, ending))
        try:
            for each in sockets:
                await web.SockSite(runner, each).start()
            yield sockets[0].getsockname()[1]
        finally:
            ending.set()
            service.streams.end()
            await runner.cleanup()


def main(argv: Sequence[str] | None = None) -> None:
    options = _parser().parse_args(argv)
    logs.configure(json=False, debug=options.verbose, program="nstance-dev-k8s")
    try:
        asyncio.run(_run(options.dir, port=options.port, kubeconfig=options.kubeconfig))
    except OSError as problem:
        where = f"port {options.port} or folder {options.dir} cannot be used ({problem.strerror or problem})"
        sys.exit(f"nstance-dev-k8s: {where}; end the other process, or choose others with --port and --dir")


async def _run(folder: pathlib.Path, *, port: int, kubeconfig: pathlib.Path | None) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    async with serving(folder, port=port) as chosen:
        if kubeconfig is not None:
            _write_kubeconfig(kubeconfig, chosen)
        sys.stdout.write(f"dev-k8s listens on http://localhost:{chosen}, objects in {folder}\n")
        sys.stdout.flush()
        await ended.wait()


def _write_kubeconfig(path: pathlib.Path, port: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(KUBECONFIG.format(port=port))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nstance-dev-k8s",
        description="A Kubernetes API server over JSON files, for development. Plain HTTP, on loopback only.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--port", type=loopback.port, default=6443, metavar="N", help="default 6443; 0 takes a free one"
    )
    parser.add_argument(
        "--dir", type=pathlib.Path, default=pathlib.Path("temp/dev-k8s"), help="where objects are kept (temp/dev-k8s)"
    )
    parser.add_argument("--kubeconfig", type=pathlib.Path, metavar="FILE", help="write a kubeconfig that leads here")
    parser.add_argument("-v", "--verbose", action="store_true", help="log every request")
    parser.add_argument("--version", action="version", version=f"nstance-dev-k8s {metadata.version('nstance')}")
    return parser


if __name__ == "__main__":
    main()
