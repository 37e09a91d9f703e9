"""Builds the wheel: Cargo builds the native library, which goes beside the Python files. Needs nothing but Python and Cargo.

One wheel serves all Pythons, since the library is loaded with ctypes and no libpython is involved.
"""

import base64
import hashlib
import io
import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "bindings" / "python" / "undraft"
LIBRARY = {"darwin": "libundraft_python.dylib", "win32": "undraft_python.dll"}.get(sys.platform, "libundraft_python.so")


def _project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def _cargo():
    """Builds the native library in release mode; gives its path. `UNDRAFT_CARGO_FLAGS` has flags for Cargo, with spaces between."""
    target = Path(os.environ.get("CARGO_TARGET_DIR") or ROOT / "target").resolve()
    command = [os.environ.get("CARGO", "cargo"), "build", "--release", "--locked", "--package", "undraft-python"]
    command += os.environ.get("UNDRAFT_CARGO_FLAGS", "").split()
    try:
        subprocess.run(command, cwd=ROOT, check=True, env={**os.environ, "CARGO_TARGET_DIR": str(target)})
    except FileNotFoundError:
        raise SystemExit("cargo is not installed, expected Rust 1.95 or newer") from None
    return target / "release" / LIBRARY


def _metadata(project):
    lines = [
        "Metadata-Version: 2.4",
        f"Name: {project['name']}",
        f"Version: {project['version']}",
        f"Summary: {project['description']}",
        f"License-Expression: {project['license']}",
        *(f"License-File: {name}" for name in project["license-files"]),
        f"Requires-Python: {project['requires-python']}",
        *(f"Project-URL: {name}, {url}" for name, url in project["urls"].items()),
        *(f"Requires-Dist: {requirement}" for requirement in project["dependencies"]),
    ]
    for extra, requirements in project["optional-dependencies"].items():
        lines.append(f"Provides-Extra: {extra}")
        lines += [f'Requires-Dist: {requirement} ; extra == "{extra}"' for requirement in requirements]
    readme = (ROOT / project["readme"]).read_text(encoding="utf-8")
    return "\n".join([*lines, "Description-Content-Type: text/markdown", "", readme])


def _write_wheel(directory, files):
    """Writes a wheel of (name, bytes) pairs; gives its file name."""
    project = _project()
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    name = f"{project['name']}-{project['version']}"
    tag = f"py3-none-{platform}"
    info = f"{name}.dist-info"
    wheel = f"Wheel-Version: 1.0\nGenerator: undraft\nRoot-Is-Purelib: false\nTag: {tag}\n"
    files = [*files, (f"{info}/METADATA", _metadata(project).encode()), (f"{info}/WHEEL", wheel.encode())]
    files += [(f"{info}/licenses/{file}", (ROOT / file).read_bytes()) for file in project["license-files"]]
    record = ""
    for path, data in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(data)}\n"
    record += f"{info}/RECORD,,\n"
    with zipfile.ZipFile(Path(directory) / f"{name}-{tag}.whl", "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in [*files, (f"{info}/RECORD", record.encode())]:
            entry = zipfile.ZipInfo(path, (2020, 1, 1, 0, 0, 0))
            entry.external_attr = (0o755 if path.endswith(LIBRARY) else 0o644) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, data)
    return f"{name}-{tag}.whl"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """The wheel, as PEP 517 has it."""
    sources = sorted(path for path in PACKAGE.rglob("*") if path.suffix == ".py" or path.name == "py.typed")
    files = [(path.relative_to(PACKAGE.parent).as_posix(), path.read_bytes()) for path in sources]
    return _write_wheel(wheel_directory, [*files, (f"undraft/{LIBRARY}", _cargo().read_bytes())])


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """A wheel that points here, as PEP 660 has it; the library is copied beside the sources."""
    (PACKAGE / LIBRARY).write_bytes(_cargo().read_bytes())
    return _write_wheel(wheel_directory, [("undraft.pth", f"{PACKAGE.parent}\n".encode())])


def build_sdist(sdist_directory, config_settings=None):
    """The sources that the wheel needs, as PEP 517 has it."""
    project = _project()
    name = f"{project['name']}-{project['version']}"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(Path(sdist_directory) / f"{name}.tar.gz", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(listed.decode().rstrip("\0").split("\0")):
            if not path.startswith(("models/", "testdata/")):
                archive.add(ROOT / path, f"{name}/{path}", recursive=False)
        data = _metadata(project).encode()
        entry = tarfile.TarInfo(f"{name}/PKG-INFO")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return f"{name}.tar.gz"
