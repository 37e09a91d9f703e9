# `make check` is what CI runs, after `make kernels apple sanitize python`. Its last step is the tests, so that the last line is their summary.

CARGO ?= cargo
PYTHON ?= python3
UNDRAFT = $(CARGO) run --release --locked --

.NOTPARALLEL:
.PHONY: check fmt clippy docs layers licences repo fatbin apple kernels sanitize python doctest generate selftest c test bench deny

check: fmt layers licences repo fatbin clippy docs doctest generate selftest c test

fmt:
	$(CARGO) fmt --all --check

clippy:
	$(CARGO) clippy --workspace --all-targets --all-features --locked -- -D warnings

# No program: it has the name of a library, and its documentation would take that one's place. With examples the features of
# dependencies are those of clippy, which has checked them.
docs:
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --all-features --no-deps --lib --examples --locked

# Which crate may import which.
layers:
	$(PYTHON) tools/check_layers.py

# Licences of all dependencies, against deny.toml.
licences:
	$(PYTHON) tools/check_licences.py

# What no file may hold; links and the example of the documentation.
repo:
	tools/check_repo.sh
	$(PYTHON) tools/check_docs.py

# Whether the embedded machine code is that of the CUDA sources.
fatbin:
	tools/cuda/build_fatbin.sh --sources

# The code for macOS, type-checked on this system; skipped, and said so, where the standard library's source cannot be had.
apple:
	tools/check_apple.sh

# The CUDA kernels with nvcc, for three targets; fetches the compiler from PyPI the first time.
kernels:
	tools/cuda/check_kernels.sh

# The Metal kernels in emulation under the address sanitizer.
sanitize:
	tools/check_sanitized.sh

# The Python package: wheel, tests without and with torch, types; fetches torch from PyPI the first time, 5 GB.
python:
	tools/check_python.sh

doctest:
	$(CARGO) test --doc --workspace --all-features --locked

# The README's first command, and the same with a comparison; a difference ends with exit code 1.
generate:
	$(UNDRAFT) generate </dev/null
	$(UNDRAFT) generate --prompt "def main():" --draft mtp --compare --max-tokens 64 --json </dev/null

# On the CPU: the suite on other devices is one of the tests.
selftest:
	$(UNDRAFT) selftest --device cpu

# The C library, installed into an empty folder, and programs against it under sanitizers.
c:
	bindings/c/tests/run.sh

test:
	tools/run_tests.sh

# Not part of `check`: figures of this machine, and cargo-deny where it is installed.
bench:
	$(UNDRAFT) bench

deny:
	$(CARGO) deny check
