#!/usr/bin/env bash
# Fails on what no file of the repository may hold: paths of one machine, Rust files of more than 700 lines, unfinished
# or forgotten code, ignored tests.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

max_lines=700
failed=0
fail() {
    echo "repo: $1" >&2
    failed=1
}

# Files that are tracked or could be; without git, all but build output.
list() {
    if git -c safe.directory='*' rev-parse --is-inside-work-tree >/dev/null 2>&1; then
        git -c safe.directory='*' ls-files -z --cached --others --exclude-standard
    else
        find . -path ./target -prune -o -path ./.git -prune -o -type f -print0 | sed -z 's|^\./||'
    fi
}

files=() rust=()
while IFS= read -r -d '' file; do
    # A deleted file is listed until the deletion is committed.
    [[ -f $file && $file != tools/check_repo.sh ]] || continue
    files+=("$file")
    [[ $file == *.rs ]] && rust+=("$file")
done < <(list)
((${#rust[@]} > 0)) || fail "no Rust files found, expected those of crates/"

search() {
    local pattern=$1 what=$2 hits
    shift 2
    # grep finds nothing where all is well, which it reports as a failure.
    hits=$(printf '%s\0' "$@" | xargs -0 grep -nIHE -e "$pattern" --) || true
    if [[ -n $hits ]]; then
        fail "$what:"
        cut -c1-160 <<<"$hits" >&2
    fi
}

search '(^|[^A-Za-z0-9_./~-])/(home|root|Users|work|workspace|mnt|tmp)/[A-Za-z0-9_.]' 'absolute paths of one machine' "${files[@]}"
search '(^|[^A-Za-z0-9])[A-Z]:\\\\?(Users|Windows|Temp)\\' 'absolute paths of one machine' "${files[@]}"
search '\b(todo|unimplemented|dbg)!' 'unfinished or forgotten code' "${rust[@]}"
search '#\[ignore\b' 'ignored tests' "${rust[@]}"

for file in "${rust[@]}"; do
    lines=$(wc -l <"$file")
    ((lines <= max_lines)) || fail "$file has $lines lines, expected at most $max_lines"
done

((failed == 0)) || exit 1
echo "repo: ${#files[@]} files, ${#rust[@]} of Rust"
