"""Writes the tables of inputs and outputs into the READMEs of the Terraform modules. `--check` only compares."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODULES = tuple(
    ROOT / "deploy" / "terraform" / cloud / name
    for cloud in ("aws", "google", "proxmox")
    for name in ("cluster", "shard")
)
BEGIN, END = "<!-- inputs and outputs: make manifests -->", "<!-- end -->"

_BLOCK = re.compile(r'^(variable|output) "(\w+)" \{\n(.*?)^\}', re.MULTILINE | re.DOTALL)
_DESCRIPTION = re.compile(r'^  description = "((?:[^"\\]|\\.)*)"', re.MULTILINE)
_DEFAULT = re.compile(r"^  default\s+= (.+)", re.MULTILINE)
_TYPE = re.compile(r"^  type\s+= (\w+(?:\([^\n{]*\))?)", re.MULTILINE)


def tables(module: Path) -> str:
    inputs, outputs = (
        ["| input | type | default | meaning |", "|---|---|---|---|"],
        ["| output | meaning |", "|---|---|"],
    )
    for kind, name, body in _blocks(module):
        found = _DESCRIPTION.search(body)
        if found is None:
            raise SystemExit(f"terraform-docs: expected a description of {kind} {name} in {module}")
        description = found[1].replace('\\"', '"').replace("|", "\\|")
        if kind == "output":
            outputs.append(f"| `{name}` | {description} |")
            continue
        default, type_ = _DEFAULT.search(body), _TYPE.search(body)
        shown = f"`{default[1]}`" if default is not None else "required"
        inputs.append(f"| `{name}` | {type_[1] if type_ else ''} | {shown} | {description} |")
    return "\n".join([*inputs, "", *outputs])


def _blocks(module: Path) -> list[tuple[str, str, str]]:
    text = "".join((module / name).read_text() for name in ("variables.tf", "outputs.tf"))
    return [(kind, name, body) for kind, name, body in _BLOCK.findall(text)]


def generated(module: Path) -> str:
    before, begin, rest = (module / "README.md").read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"terraform-docs: expected {BEGIN} and {END} in {module / 'README.md'}")
    return f"{before}{BEGIN}\n\n{tables(module)}\n\n{END}{after}"


def main() -> int:
    stale = [module for module in MODULES if (module / "README.md").read_text() != generated(module)]
    for module in stale:
        if "--check" in sys.argv:
            path = (module / "README.md").relative_to(ROOT)
            sys.stderr.write(f"{path} is out of date: run 'make manifests'\n")
        else:
            (module / "README.md").write_text(generated(module))
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
