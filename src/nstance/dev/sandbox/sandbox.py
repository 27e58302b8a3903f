"""A machine without a kernel of its own: userdata runs in namespaces, in a root that holds nothing of the host but /usr.

bubblewrap makes it: its own processes, host name, /etc, /opt, /var and /usr/local, and the host's /usr read-only. The network
is the host's, so that a server on this machine can be reached. When the machine is stopped, all its processes end.
"""

import asyncio
import gzip
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

SYSTEMCTL = Path(__file__).with_name("systemctl.sh")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
# Of the host's /etc: names, users, and certificates for TLS. No keys and no configuration.
_COPIED = ("passwd", "group", "nsswitch.conf", "hosts", "resolv.conf", "login.defs", "ld.so.cache", "os-release")
_SHARED = ("/etc/ssl/certs", "/etc/pki/tls/certs", "/etc/alternatives")
_WRITABLE = ("etc", "opt", "var", "run", "root", "usr/local")
_BOOT = 'sh /run/userdata; echo "userdata ended with exit code $?"; exec sleep infinity'


class SandboxError(Exception):
    """The machine cannot start; the message says what to do."""


class Sandbox:
    def __init__(self, folder: Path, *, hostname: str, environment: Mapping[str, str]) -> None:
        """`environment` is what the platform tells every process and service, such as where its metadata is."""
        self._folder = folder
        self._hostname = hostname
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None

    @property
    def console(self) -> str:
        path = self._folder / "console.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    def log(self, service: str) -> str:
        path = self._folder / "root/var/log" / f"{service}.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    async def boot(self, userdata: bytes) -> None:
        """Returns when the machine runs; its userdata may still be at work. Raises SandboxError."""
        program = shutil.which("bwrap")
        if program is None:
            raise SandboxError("expected bwrap, which makes sandboxes; install it (apt-get install bubblewrap)")
        if userdata.startswith(b"\x1f\x8b"):
            userdata = gzip.decompress(userdata)
        if not userdata.startswith(b"#!"):
            raise SandboxError(
                f"expected userdata that is a script, found {userdata[:40]!r}; cloud-config is not run here"
            )
        await asyncio.to_thread(self._prepare, userdata)
        with (self._folder / "console.log").open("ab") as console:
            self._process = await asyncio.create_subprocess_exec(
                *(program, *self._arguments(), "sh", "-c", _BOOT),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,  # Ctrl+C is for the program that owns the machines
            )

    async def stop(self) -> None:
        """Pull the plug, and remove the machine's disk."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
        if self._process is not None:
            await self._process.wait()
        await asyncio.to_thread(shutil.rmtree, self._folder / "root", ignore_errors=True)

    def _prepare(self, userdata: bytes) -> None:
        root = self._folder / "root"
        for name in _WRITABLE:
            (root / name).mkdir(parents=True, exist_ok=True)
        for name in (
            "usr/local/bin",
            "usr/local/sbin",
            "usr/local/lib",
            "etc/systemd/system",
            "etc/logrotate.d",
            "var/log",
        ):
            (root / name).mkdir(parents=True, exist_ok=True)
        for name in _COPIED:
            source = Path("/etc", name)
            if source.is_file():
                shutil.copyfile(source, root / "etc" / name)
        for each in _SHARED:
            if Path(each).is_dir():
                (root / each.lstrip("/")).mkdir(parents=True, exist_ok=True)
        systemctl = root / "usr/local/sbin/systemctl"
        shutil.copyfile(SYSTEMCTL, systemctl)
        systemctl.chmod(0o755)
        (root / "run/userdata").write_bytes(userdata)
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in self._environment.items()]
        (root / "run/platform.env").write_text("".join(lines))

    def _arguments(self) -> list[str]:
        root = self._folder / "root"
        arguments = ["--unshare-user", "--uid", "0", "--gid", "0", "--unshare-pid", "--unshare-ipc", "--unshare-uts"]
        arguments += ["--hostname", self._hostname, "--die-with-parent", "--ro-bind", "/usr", "/usr"]
        for name in ("bin", "sbin", "lib", "lib64"):
            if Path("/", name).is_symlink():
                arguments += ["--symlink", f"usr/{name}", f"/{name}"]
            elif Path("/", name).is_dir():
                arguments += ["--ro-bind", f"/{name}", f"/{name}"]
        for name in _WRITABLE:
            arguments += ["--bind", str(root / name), f"/{name}"]
        for each in _SHARED:
            if Path(each).is_dir():
                arguments += ["--ro-bind", each, each]
        arguments += ["--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp", "--chdir", "/"]  # noqa: S108
        arguments += [
            "--bind",
            str(self._folder / "console.log"),
            "/dev/console",
            "--clearenv",
            "--setenv",
            "PATH",
            PATH,
        ]
        for name, value in self._environment.items():
            arguments += ["--setenv", name, value]
        return arguments
