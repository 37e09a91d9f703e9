#!/usr/bin/env python3
"""Fails on a dependency whose licence is not allowed.

    python3 tools/check_licences.py

Reads `cargo metadata` (all platforms) and `licenses.allow` of deny.toml. Needs Python 3.11.
"""

import json
import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parents[1]


def is_allowed(expression, allowed):
    """Whether an SPDX expression can be met by the allowed licences alone. Old manifests write `/` for OR."""
    tokens = re.findall(r"[()]|[^\s()]+", expression.replace("/", " OR "))
    position = 0

    def peek():
        return tokens[position] if position < len(tokens) else None

    def take():
        nonlocal position
        if position == len(tokens):
            raise ValueError(f"licence expression `{expression}` ends too early")
        position += 1
        return tokens[position - 1]

    def either():
        value = both()
        while peek() == "OR":
            take()
            # Not short: the rest of the expression must be read in any case.
            value |= both()
        return value

    def both():
        value = one()
        while peek() == "AND":
            take()
            value &= one()
        return value

    def one():
        token = take()
        if token == "(":
            value = either()
            if take() != ")":
                raise ValueError(f"licence expression `{expression}` lacks a closing parenthesis")
            return value
        if peek() == "WITH":
            take()
            token = f"{token} WITH {take()}"
        return token in allowed

    value = either()
    if peek() is not None:
        raise ValueError(f"licence expression `{expression}` goes on behind its end with `{peek()}`")
    return value


def main():
    allowed = set(tomllib.loads((ROOT / "deny.toml").read_text())["licenses"]["allow"])
    command = ["cargo", "metadata", "--format-version", "1", "--locked"]
    packages = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)["packages"]
    bad = 0
    for package in packages:
        licence = package["license"]
        if licence is None or not is_allowed(licence, allowed):
            bad += 1
            name = f"{package['name']} {package['version']}"
            expected = ", ".join(sorted(allowed))
            print(f"licences: {name} has {licence or 'no `license` key'}, expected one of {expected}", file=sys.stderr)
    if bad:
        return 1
    print(f"licences: {len(packages)} packages, all under {', '.join(sorted(allowed))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
