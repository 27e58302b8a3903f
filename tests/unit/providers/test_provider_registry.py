"""From words in the configuration to a provider, or to an error that helps."""

import subprocess
import sys
from pathlib import Path

import pytest

from contracts.provider_worlds import request, scope
from nstance.providers import errors, memory, port, process, registry
from support.hand_clock import HandClock


def opened(kind: str, options: dict[str, object], cachedir: Path) -> port.Instances:
    return registry.open_provider(kind, scope=scope(), options=options, cachedir=cachedir, clock=HandClock())


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("proces", {}, "there is no provider 'proces'; did you mean 'process'?"),
        ("zzz", {}, "known: memory, mock, process, tmux"),
        ("aws", {}, "shard.infra.region: expected a region of AWS"),
        ("aws", {"endpiont": "x"}, "provider 'aws' has no option 'endpiont'; did you mean 'endpoint'?"),
        ("aws", {"launch_rate": 0}, "expected a number above 0"),
        ("gcp", {}, "expected a zone of Google such as europe-west1-b"),
        ("google", {"project": "x"}, "did you mean 'project_id'"),
        ("proxmox", {}, "expected the address of Proxmox in option 'api_url' or PROXMOX_API_URL, found none"),
        ("proxmox", {"api_url": "pve:8006"}, "expected https://HOST:8006, found 'pve:8006'"),
        ("proxmox", {"api_url": "https://pve:8006"}, "expected PROXMOX_TOKEN_ID in the environment"),
        ("process", {"dri": "x"}, "provider 'process' has no option 'dri'; did you mean 'dir'?"),
        ("process", {"zzz": "x"}, "known: command, dir, env"),
        ("process", {"dir": 5}, "option 'dir' of provider 'process': expected a text, found int"),
        ("process", {"command": "agent --fast"}, "expected a list of texts, found str"),
        ("process", {"command": []}, "expected a list of texts"),
        ("process", {"env": {"A": 1}}, "expected an object of texts"),
        ("tmux", {"socket": ["x"]}, "expected a text, found list"),
        ("memory", {"call_seconds": "1s"}, "expected a number of seconds, found str"),
        ("memory", {"call_seconds": True}, "expected a number of seconds"),
        ("memory", {"boot_seconds": -1}, "expected a number of seconds"),
        ("memory", {"call_seconds": float("nan")}, "expected a number of seconds"),
        ("memory", {"subnets": {"a": "many"}}, "expected an object of counts"),
    ],
)
def test_refusals(
    kind: str, options: dict[str, object], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("PROXMOX_API_URL", "PROXMOX_TOKEN_ID", "PROXMOX_TOKEN_SECRET"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(errors.PermanentError) as caught:
        opened(kind, options, tmp_path)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == [], "a refusal leaves nothing"


def test_a_wrong_value_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(errors.PermanentError) as caught:
        opened("process", {"dir": {"token": "hunter2"}}, tmp_path)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("kind", ["memory", "mock"])
async def test_memory(kind: str, tmp_path: Path) -> None:
    provider = opened(kind, {"subnets": {"full": 0}}, tmp_path)
    assert isinstance(provider, memory.MemoryProvider)
    await provider.create(request(subnet="other"))
    with pytest.raises(errors.NoCapacityError):
        await provider.create(request(subnet="full"))


@pytest.mark.parametrize(("options", "folder"), [({}, "cache/instances"), ({"dir": "{tmp}/elsewhere"}, "elsewhere")])
async def test_process(options: dict[str, str], folder: str, tmp_path: Path) -> None:
    given = {name: text.replace("{tmp}", str(tmp_path)) for name, text in options.items()}
    provider = opened("process", dict(given), tmp_path / "cache")
    assert isinstance(provider, process.ProcessProvider)
    await provider.open_folder(())
    assert (tmp_path / folder).is_dir()
    assert await provider.list() == []
    await provider.close()


def test_providers_are_imported_only_when_configured() -> None:
    code = (
        "import sys; from nstance.providers import registry; "
        "print(sorted(m for m in sys.modules if m.startswith('nstance.providers.')))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    names = ["errors", "options", "port", "registry"]
    assert shown.strip() == str([f"nstance.providers.{name}" for name in names])
