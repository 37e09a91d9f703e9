#!/usr/bin/env bash
# Builds the wheel, tests it without torch, then with torch, and type-checks the package. Virtual environments stay in target/python.
#
#     tools/check_python.sh               all of it
#     tools/check_python.sh --no-torch    ends after the first tests
#     tools/check_python.sh --fetch       fetches what the environments need, and does no more
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
venvs=${CARGO_TARGET_DIR:-target}/python
tests=bindings/python/tests

# make_venv NAME REQUIREMENTS: an environment with what the file lists.
make_venv() {
    local venv=$venvs/$1
    [[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "bindings/python/$2"
}
if [[ ${1:-} == --fetch ]]; then
    make_venv plain requirements-test.txt
    make_venv torch requirements-torch.txt
    exit 0
fi

# With the program beside it the library has the same dependencies as `make generate`, which are then built once.
export UNDRAFT_CARGO_FLAGS="--package undraft-cli"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$wheels" .
install_wheel() {
    "$venvs/$1/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheels"/undraft-*.whl
}

make_venv plain requirements-test.txt
install_wheel plain
"$venvs/plain/bin/python" -m pytest -q -p no:cacheprovider "$tests"/test_arrays.py "$tests"/test_pool.py "$tests"/test_docs.py
if [[ ${1:-} == --no-torch ]]; then
    exit 0
fi

make_venv torch requirements-torch.txt
install_wheel torch
"$venvs/torch/bin/python" -m pytest -q -p no:cacheprovider -rs "$tests"
"$venvs/torch/bin/python" -m mypy --strict --cache-dir "$venvs/mypy" bindings/python/undraft
