#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, in one go: unit tests, conformance, windows and trees bit for bit, the memory and race
# checkers, then the benches. Writes docs/benchmarks-cuda.md, and nothing if a check fails.
#
#     tools/gpu_check.sh                   builds and runs
#     tools/gpu_check.sh --build DIR       builds the programs into DIR, for a machine without Rust
#     tools/gpu_check.sh --run DIR FILE    runs the programs of DIR and writes FILE
#
# The checkers run where compute-sanitizer is found, and are said to be skipped elsewhere.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

build() {
    mkdir -p "$1"
    local messages
    messages=$(cd "$root" && cargo test --release --locked --no-run --message-format json -p undraft-cuda --lib --tests &&
        cargo build --release --locked --message-format json -p undraft-cuda --example bench)
    printf '%s\n' "$messages" | python3 -c '
import json, shutil, sys
for line in sys.stdin:
    message = json.loads(line)
    if message.get("executable"):
        shutil.copy(message["executable"], sys.argv[1] + "/" + message["target"]["name"])
' "$1"
    (cd "$root" && git rev-parse HEAD 2>/dev/null || echo unknown) >"$1/commit"
    if [[ -n $(cd "$root" && git status --porcelain 2>/dev/null) ]]; then echo "with uncommitted changes" >>"$1/commit"; fi
}

run() {
    local programs=$1 report=$2 checks="" name
    export UNDRAFT_REQUIRE=cuda
    for name in undraft_cuda errors driver conformance windows chunk; do
        "$programs/$name" | tail -n 3
        checks+="* \`$name\`: passed"$'\n'
    done
    if command -v compute-sanitizer >/dev/null; then
        for name in memcheck racecheck; do
            compute-sanitizer --tool "$name" --error-exitcode 9 "$programs/windows" | tail -n 3
            checks+="* compute-sanitizer $name on \`windows\`: passed"$'\n'
        done
    else
        checks+="* compute-sanitizer: skipped, not found"$'\n'
    fi
    local bench
    bench=$("$programs/bench")
    {
        echo "# CUDA: figures"
        echo
        echo "Written by \`tools/gpu_check.sh\`; what the rows mean is told in \`crates/undraft-cuda/examples/bench.rs\`."
        echo
        echo "* commit: $(paste -sd' ' "$programs/commit")"
        echo "* GPU, driver: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)"
        echo "* command: \`cargo run --release -p undraft-cuda --example bench\`"
        printf '%s' "$checks"
        echo
        printf '%s\n' "$bench" | grep '^|'
    } >"$report"
    cat "$report"
}

case ${1:-} in
--build) build "${2:?folder}" ;;
--run) run "${2:?folder}" "${3:?file}" ;;
"")
    programs=$(mktemp -d)
    trap 'rm -rf "$programs"' EXIT
    build "$programs"
    run "$programs" "$root/docs/benchmarks-cuda.md"
    ;;
*)
    echo "gpu_check: argument is $1, expected --build or --run" >&2
    exit 2
    ;;
esac
