#!/usr/bin/env bash
# The Metal kernels in emulation under the address sanitizer, besides the checks for undefined behaviour that every emulated run has:
# whoever touches a byte beyond a buffer, beyond threadgroup memory or beyond an array of a thread's is told of with the
# line. Builds into target/sanitize. `--all` runs the exactness properties as well, which touch no other memory.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

skip=(--skip mutants:: --skip ::exactness_)
[[ ${1:-} == --all ]] && skip=(--skip mutants::)
runtime=$("${CC:-cc}" -print-file-name=libasan.so)
[[ -e $runtime ]] || { echo "sanitize: ${CC:-cc} has no libasan.so" >&2; exit 1; }
folder=${CARGO_TARGET_DIR:-target}/sanitize
log=$(mktemp)
trap 'rm -f "$log"' EXIT

CARGO_TARGET_DIR=$folder UNDRAFT_SANITIZE=address "${CARGO:-cargo}" test --locked --no-run --message-format json \
    --package undraft-emulator --test metal >"$log"
program=$(python3 -c '
import json, sys
built = [json.loads(line).get("executable") for line in open(sys.argv[1])]
print(*filter(None, built))' "$log")

# Rust links with no sanitizer: its run-time library is loaded first.
sanitized() {
    (cd crates/undraft-emulator && ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD=$runtime "$program" "$@")
}
# A planted write past the last row must be found.
if sanitized mutants::mistakes_in_the_recurrence >"$log" 2>&1 || ! grep -q "SUMMARY: AddressSanitizer: .*mutant_past_the_last_row" "$log"; then
    tail -n 40 "$log" >&2
    echo "sanitize: a planted write past the end of a buffer was not reported" >&2
    exit 1
fi
sanitized --quiet "${skip[@]}"
