#!/usr/bin/env bash
# Everything that needs an NVIDIA GPU, in one go: the tests of undraft-cuda, the memory and race checkers, generations that must
# be those of plain decoding and of the CPU, the tests of undraft-wgpu through Vulkan, then the benches. Writes docs/benchmarks-cuda.md, and nothing if a check fails.
#
#     tools/gpu_check.sh                   builds and runs
#     tools/gpu_check.sh --build DIR       builds the programs into DIR, for a machine without Rust
#     tools/gpu_check.sh --run DIR FILE    runs the programs of DIR and writes FILE
#
# A run needs python3, and the repository's models and testdata. compute-sanitizer, and flash-linear-attention with torch, are
# used where they are found, and said to be skipped elsewhere.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

die() {
    echo "gpu_check: $1" >&2
    exit 1
}

build() {
    mkdir -p "$1/tests" "$1/tests-wgpu"
    rm -f "$1"/tests/* "$1"/tests-wgpu/*
    (
        cd "$root"
        cargo test --release --locked --no-run --message-format json -p undraft-cuda --lib --tests
        cargo build --release --locked --message-format json -p undraft-cli --bin undraft
        cargo test --release --locked --no-run --message-format json -p undraft-wgpu --lib --tests
    ) >"$1/messages"
    # Test programs by the names of their targets, the program beside them.
    python3 - "$1" <<'PYTHON'
import json, pathlib, shutil, sys
folder = pathlib.Path(sys.argv[1])
for line in (folder / "messages").read_text().splitlines():
    message = json.loads(line)
    if message.get("executable"):
        wgpu = "/undraft-wgpu" in message["package_id"]
        into = folder / ("tests-wgpu" if wgpu else "tests") if message["profile"]["test"] else folder
        shutil.copy(message["executable"], into / message["target"]["name"])
PYTHON
    rm "$1/messages"
    (cd "$root" && git rev-parse HEAD 2>/dev/null || echo unknown) >"$1/commit"
    if [[ -n $(cd "$root" && git status --porcelain 2>/dev/null) ]]; then echo "with uncommitted changes" >>"$1/commit"; fi
}

# Runs a check: its last lines if it passes, more of them and the end of all if it fails.
checks=""
check() {
    local name=$1
    shift
    if ! "$@" >"$work/log" 2>&1; then
        tail -n 60 "$work/log" >&2
        die "$name failed: $*"
    fi
    echo "== $name"
    tail -n 2 "$work/log"
    checks+="* $name: passed"$'\n'
}
skip() {
    echo "== $1: skipped, $2"
    checks+="* $1: skipped, $2"$'\n'
}

# Generates on the GPU with drafts and without, and compares. `cpu`: the tokens of a greedy run are also the CPU's.
generate() {
    local against=$1
    shift
    "$undraft" generate --device cuda --json --compare "$@" >"$work/cuda.json" || return 1
    if [[ $against == cpu ]]; then
        "$undraft" generate --device cpu --json "$@" >"$work/cpu.json" || return 1
    else
        rm -f "$work/cpu.json"
    fi
    python3 - "$work" <<'PYTHON'
import json, pathlib, sys
folder = pathlib.Path(sys.argv[1])
cuda = json.loads((folder / "cuda.json").read_text())
drafted, plain = cuda["token_ids"], cuda["compare"]["plain_token_ids"]
if not cuda["compare"]["identical"] or drafted != plain:
    sys.exit("identical: no")
if cuda["report"]["draft"] != "none" and cuda["report"]["drafted"] == 0:
    sys.exit("nothing was drafted, expected at least one draft")
if (folder / "cpu.json").exists():
    cpu = json.loads((folder / "cpu.json").read_text())["token_ids"]
    if cpu != drafted:
        same = next((i for i, (a, b) in enumerate(zip(cpu, drafted)) if a != b), min(len(cpu), len(drafted)))
        sys.exit(f"token {same} differs from the CPU's")
print(f"identical: yes, {len(drafted)} tokens, {cuda['report']['tokens_per_round']:.2f} a round")
PYTHON
}

generations() {
    local prompt=$'import os\nimport sys\n\n\ndef read_config(path):\n    """'
    local common=(--prompt "$prompt" --max-tokens 128 --ignore-eos) sampled=(--temperature 0.8 --seed 7) args
    for args in "mtp --window 3" "lookup --window 5" "mtp+lookup --window 5"; do
        # shellcheck disable=SC2086 # words are options
        check "\`undraft generate --device cuda --draft $args --compare\`, tokens of the CPU" \
            generate cpu "${common[@]}" --temperature 0 --draft $args
        # shellcheck disable=SC2086
        check "\`undraft generate --device cuda --draft $args --temperature 0.8 --compare\`" \
            generate plain "${common[@]}" "${sampled[@]}" --draft $args
    done
    check "\`undraft generate --device cuda --draft mtp --compare\` with experts and random weights" \
        generate plain --model testdata/models/qwen3_next-random --prompt-ids 3,17,9,44 --max-tokens 64 --ignore-eos \
        --draft mtp --window 3
}

# Whether wgpu has a GPU here; a CPU that poses as one is no reason to measure.
vulkan() {
    grep -q '^wgpu:0, ' "$work/devices" && ! grep -qiE '^wgpu:0, .*(llvmpipe|not available)' "$work/devices"
}

# Section of the report: a command and what it prints.
figures=""
bench() {
    local output
    output=$("${@:2}") || die "$1 failed"
    printf '== %s\n%s\n' "$1" "$output"
    figures+=$'\n'"\`$1\`"$'\n\n```\n'"$output"$'\n```\n'
}

run() {
    local programs report name
    [[ -x $1/undraft && -d $1/tests ]] || die "$1 has no programs, expected those of \`--build\`"
    programs=$(realpath "$1") report=$(realpath -m "$2")
    undraft=$programs/undraft
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    cd "$root"
    "$undraft" devices >"$work/devices"
    grep -q '^cuda:0, ' "$work/devices" || die "\`undraft devices\` lists no cuda:0"
    if grep '^cuda:0, not available' "$work/devices" >&2; then die "no GPU to run on"; fi

    export UNDRAFT_REQUIRE=cuda
    for name in "$programs"/tests/*; do check "tests \`$(basename "$name")\`" "$name"; done
    if command -v compute-sanitizer >/dev/null; then
        for name in memcheck racecheck; do
            check "compute-sanitizer $name on \`windows\`" \
                compute-sanitizer --tool "$name" --error-exitcode 9 "$programs/tests/windows"
        done
    else
        skip "compute-sanitizer" "not found"
    fi
    generations
    if vulkan; then
        for name in "$programs"/tests-wgpu/*; do
            UNDRAFT_REQUIRE=wgpu check "tests \`$(basename "$name")\` of undraft-wgpu" "$name"
        done
    else
        skip "tests of undraft-wgpu" "no GPU that wgpu knows, expected the loader libvulkan1 and the driver's Vulkan part"
    fi

    for name in f32 bf16; do
        bench "undraft bench --device cuda --state $name" "$undraft" bench --device cuda --state "$name"
    done
    if vulkan; then bench "undraft bench --device wgpu" "$undraft" bench --device wgpu; fi
    bench "undraft bench --device cuda --op chunk" "$undraft" bench --device cuda --op chunk
    if python3 -c 'import torch, fla' 2>/dev/null; then
        bench "python3 tools/cuda/fla_chunk.py" python3 -W ignore tools/cuda/fla_chunk.py
    else
        skip "tools/cuda/fla_chunk.py" "torch or fla not found"
    fi
    {
        echo "# CUDA and wgpu: figures"
        echo
        echo "Written by \`tools/gpu_check.sh\`; [cuda.md](cuda.md#figures) and [wgpu.md](wgpu.md#figures) tell how they are measured."
        echo
        echo "* commit: $(paste -sd' ' "$programs/commit")"
        echo "* GPU, driver: $(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | head -n 1)"
        printf '%s%s' "$checks" "$figures"
    } >"$work/report"
    cp "$work/report" "$report"
    echo "written: $report"
}

case ${1:-} in
--build) build "${2:?folder}" ;;
--run) run "${2:?folder}" "${3:?file}" ;;
"")
    mkdir -p "$root/target/gpu_check"
    build "$root/target/gpu_check"
    run "$root/target/gpu_check" "$root/docs/benchmarks-cuda.md"
    ;;
*)
    echo "gpu_check: argument is $1, expected --build or --run" >&2
    exit 2
    ;;
esac
