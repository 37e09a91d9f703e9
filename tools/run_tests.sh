#!/usr/bin/env bash
# Runs every test of the workspace but those in documentation, with cargo-nextest where it is there, else with
# `cargo test`. The last line is the runner's summary, or `N passed, N failed` over all test programs.
#
#     tools/run_tests.sh                 all of them
#     tools/run_tests.sh -p undraft      arguments that both runners know choose packages and test programs
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

programs=()
if (($# == 0)); then
    set -- --workspace
    # All but examples in documentation, which `cargo test` would run as well.
    programs=(--lib --bins --tests --examples)
fi

if cargo nextest --version >/dev/null 2>&1; then
    exec cargo nextest run --all-features --locked --no-fail-fast "$@"
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
status=0
cargo test --all-features --locked --no-fail-fast "${programs[@]}" "$@" 2>&1 | tee "$log" || status=$?
awk '/^test result: / {
    for (i = 2; i <= NF; i++) {
        if ($i ~ /^passed/) passed += $(i - 1)
        if ($i ~ /^failed/) failed += $(i - 1)
    }
}
END { printf "%d passed, %d failed\n", passed, failed }' "$log"
exit "$status"
