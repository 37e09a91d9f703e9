#!/usr/bin/env bash
# Installs the library into an empty folder and runs the C tests against it: gcc with warnings as errors, under the address,
# undefined-behaviour and leak sanitizers; the examples, shared and static; the headers as C++.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

CC=${CC:-gcc} CXX=${CXX:-g++}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
prefix=$work/prefix
# With the program beside it the library has the same dependencies as `make generate`, which are then built once.
make --no-print-directory install CARGO_FLAGS="--package undraft-cli" PREFIX="$prefix" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }

export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
read -ra cflags <<<"$(pkg-config --cflags undraft)"
read -ra shared <<<"$(pkg-config --libs undraft) -Wl,-rpath,$prefix/lib"
# The archive by its path, and behind it what it needs of the system.
read -ra static <<<"$prefix/lib/libundraft.a $(pkg-config --static --libs-only-l undraft | sed 's/-lundraft\b//')"
warnings=(-Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Werror)
sanitizers=(-g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all)
export ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
count=0

run() {
    local name=$1
    shift
    "$@" >"$work/$name.out" 2>"$work/$name.err" || { cat "$work/$name.out" "$work/$name.err" >&2; echo "c: $name failed" >&2; exit 1; }
    count=$((count + 1))
}
# A program without leaks, and one with: the sanitizer must tell them apart.
sanitized() {
    "$CC" -std=c11 "${warnings[@]}" "${sanitizers[@]}" "${cflags[@]}" "$1" "${shared[@]}" -lpthread -lm -o "$2"
}

for test in rounds errors ops threads files; do
    sanitized "tests/$test.c" "$work/$test"
done
for test in rounds errors ops threads; do
    run "$test" "$work/$test"
done
run files "$work/files" "$work"

sed 's/undraft_layer_free(layer);//' examples/speculate.c >"$work/leak.c"
sanitized "$work/leak.c" "$work/leak"
if "$work/leak" >/dev/null 2>"$work/leak.err" || ! grep -q 'LeakSanitizer' "$work/leak.err"; then
    echo "c: a layer that is not freed is no leak to the sanitizer, expected a report" >&2
    exit 1
fi

# The examples as a user compiles them, against both forms of the library; docs/c.md shows its own whole.
python3 tests/example_of_docs.py ../../docs/c.md >"$work/docs.c"
for example in examples/speculate.c "$work/docs.c"; do
    name=$(basename "$example" .c)
    "$CC" -std=c11 "${warnings[@]}" "${cflags[@]}" "$example" "${shared[@]}" -o "$work/$name-shared"
    "$CC" -std=c11 "${warnings[@]}" "${sanitizers[@]}" "${cflags[@]}" "$example" "${static[@]}" -o "$work/$name-static"
    run "$name-shared" "$work/$name-shared"
    run "$name-static" "$work/$name-static"
    cmp "$work/$name-shared.out" "$work/$name-static.out"
    cmp "$work/$name-shared.out" "tests/$name.out"
done
readelf -d "$work/speculate-shared" | grep -q 'NEEDED.*libundraft\.so\.' || { echo "c: no soname is needed by a program" >&2; exit 1; }
lines=$(wc -l <examples/speculate.c)
((lines <= 60)) || { echo "c: examples/speculate.c has $lines lines, expected at most 60" >&2; exit 1; }

"$CXX" -std=c++11 -Wall -Wextra -Wpedantic -Werror "${sanitizers[@]}" "${cflags[@]}" tests/header.cpp "${shared[@]}" -o "$work/header"
run header "$work/header"
# Nothing is exported but the interface.
if nm -D --defined-only "$prefix/lib/libundraft.so" | awk '{ print $3 }' | grep -v '^undraft_'; then
    echo "c: the library exports these names, expected undraft_* alone" >&2
    exit 1
fi
make --no-print-directory uninstall PREFIX="$prefix" >"$work/log"
left=$(find "$prefix" -type f -o -type l)
[[ -z $left ]] || { echo "c: uninstall leaves $left" >&2; exit 1; }
echo "c: $count programs passed"
