#!/usr/bin/env bash
# Builds the wheel, tests it without torch, then with torch, and type-checks the package. `--no-torch` ends after the first tests.
# Virtual environments stay in target/python.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-python3}
venvs=${CARGO_TARGET_DIR:-target}/python
tests=bindings/python/tests

# make_venv NAME REQUIREMENTS: an environment with the wheel and what the file lists.
make_venv() {
    local venv=$venvs/$1
    [[ -x $venv/bin/python ]] || "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r "bindings/python/$2"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --force-reinstall --no-deps "$wheels"/undraft-*.whl
}

wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$python" -m pip wheel --quiet --disable-pip-version-check --no-deps --wheel-dir "$wheels" .

make_venv plain requirements-test.txt
"$venvs/plain/bin/python" -m pytest -q -p no:cacheprovider "$tests"/test_arrays.py "$tests"/test_pool.py "$tests"/test_docs.py
if [[ ${1:-} == --no-torch ]]; then
    exit 0
fi

make_venv torch requirements-torch.txt
"$venvs/torch/bin/python" -m pytest -q -p no:cacheprovider -rs "$tests"
"$venvs/torch/bin/python" -m mypy --strict --cache-dir "$venvs/mypy" bindings/python/undraft
