#!/usr/bin/env python3
"""Fails on any dependency between workspace crates that the floors do not allow.

    python3 tools/check_layers.py

Arrows point downwards: undraft-cli, undraft-model, undraft, back ends, undraft-core. Back ends never import each other;
undraft-emulator stands beside undraft-testing, on top of the back end that it runs.
A crate that is not in FLOORS is an error as well: say on which floor it stands.
"""

import json
import subprocess
import sys

TESTING = {"undraft-testing"}

# Crate: what it may import, and what its tests, examples and benches may import on top.
FLOORS = {
    "undraft-core": (set(), set()),
    "undraft-testing": ({"undraft-core"}, set()),
    "undraft-cpu": ({"undraft-core"}, TESTING),
    "undraft-cuda": ({"undraft-core"}, TESTING),
    "undraft-wgpu": ({"undraft-core"}, {"undraft-cpu"} | TESTING),
    "undraft-emulator": ({"undraft-cuda"}, {"undraft-core", "undraft-cpu"} | TESTING),
    "undraft": ({"undraft-core", "undraft-cpu", "undraft-cuda", "undraft-wgpu"}, {"undraft-emulator"} | TESTING),
    "undraft-model": ({"undraft"}, {"undraft-emulator"} | TESTING),
    "undraft-cli": ({"undraft", "undraft-model"} | TESTING, set()),
}
UNPUBLISHED = TESTING | {"undraft-emulator"}


def problems(packages):
    names = {package["name"] for package in packages}
    for name in sorted(FLOORS.keys() - names):
        yield f"{name} stands on a floor and is no crate of the workspace"
    for package in packages:
        name = package["name"]
        if name not in FLOORS:
            yield f"{name} stands on no floor, expected an entry of FLOORS in tools/check_layers.py"
            continue
        if (package["publish"] == []) != (name in UNPUBLISHED):
            expected = "false" if name in UNPUBLISHED else "absent"
            yield f"{name}: key `publish` of Cargo.toml, expected {expected}"
        normal, dev = FLOORS[name]
        for dependency in package["dependencies"]:
            allowed = normal | dev if dependency["kind"] == "dev" else normal
            if dependency["name"] in names - allowed:
                kind = dependency["kind"] or "normal"
                expected = ", ".join(sorted(allowed)) or "none of the workspace"
                yield f"{name} -> {dependency['name']} ({kind} dependency), expected {expected}"


def main():
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--no-deps"]
    packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    found = list(problems(packages))
    for problem in found:
        print(f"layers: {problem}", file=sys.stderr)
    if found:
        return 1
    print(f"layers: {len(packages)} crates, every arrow points down")
    return 0


if __name__ == "__main__":
    sys.exit(main())
