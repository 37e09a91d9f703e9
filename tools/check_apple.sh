#!/usr/bin/env bash
# Type-checks the code for macOS on another system: crates as for aarch64-apple-darwin, nothing linked. The standard library for
# that target is checked from its source, Debian's package rust-src of the compiler's version, unpacked below target/apple.
#
#     tools/check_apple.sh [cargo arguments]       by default: check -p undraft-metal -p undraft
#
# Another target is checked in the same way:
#
#     UNDRAFT_TARGET=x86_64-pc-windows-msvc tools/check_apple.sh check -p undraft-wgpu --locked
#     UNDRAFT_TARGET=wasm32-unknown-unknown tools/check_apple.sh check -p undraft-wgpu --features webgpu --locked
#
# Prints why and ends well where the source cannot be had; UNDRAFT_REQUIRE_APPLE=1 makes that a failure.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

skip() {
    echo "apple: skipped: $1" >&2
    [[ ${UNDRAFT_REQUIRE_APPLE:-} != 1 ]] || exit 1
    exit 0
}

target=${UNDRAFT_TARGET:-aarch64-apple-darwin}
version=$(rustc --version | cut -d' ' -f2)
scratch=$PWD/target/apple
source=$scratch/x/usr/src/rustc-$version/library

if [[ ! -e $source/std/Cargo.toml ]]; then
    command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null || skip "no apt-get and dpkg-deb to fetch rust-src with"
    keyring=/usr/share/keyrings/debian-archive-keyring.gpg
    [[ -e $keyring ]] || skip "no keys of Debian's archive"
    # The mirror that this machine uses.
    url=$(grep -rhoE 'https?://[^ ]+/debian/?( |$)' /etc/apt/sources.list /etc/apt/sources.list.d 2>/dev/null | head -1 | tr -d ' ') || true
    [[ -n $url ]] || skip "no mirror of Debian among the sources of apt"
    rm -rf "$scratch/apt" "$scratch/x"
    mkdir -p "$scratch/apt/lists/partial" "$scratch/apt/archives/partial" "$scratch/x"
    echo "deb [signed-by=$keyring] $url trixie-backports main" >"$scratch/apt/sources.list"
    options=(-qq -o "Dir::Etc::sourcelist=$scratch/apt/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o "Dir::State::lists=$scratch/apt/lists" -o "Dir::Cache=$scratch/apt" -o APT::Sandbox::User=root)
    apt-get "${options[@]}" update >&2 || skip "the list of trixie-backports cannot be had"
    package=$(apt-cache "${options[@]}" madison rust-src | awk -v v="$version" 'index($3, v "+") == 1 { print $3; exit }')
    [[ -n $package ]] || skip "trixie-backports has no rust-src $version"
    (cd "$scratch/apt" && apt-get "${options[@]}" download "rust-src=$package" >&2) || skip "rust-src $package cannot be had"
    dpkg-deb -x "$scratch"/apt/rust-src_*.deb "$scratch/x"
    rm -rf "$scratch/apt"
    [[ -e $source/std/Cargo.toml ]] || skip "rust-src $package has no library folder of its version"
fi

(($# > 0)) || set -- check -p undraft-metal -p undraft --locked
# Cargo looks for the standard library beside the compiler; this is the variable of its own tests for another place.
export RUSTC_BOOTSTRAP=1 __CARGO_TESTS_ONLY_SRC_ROOT=$source CARGO_TARGET_DIR=$scratch/target
# Nothing of it runs.
export CARGO_PROFILE_DEV_OPT_LEVEL=0 CARGO_PROFILE_DEV_BUILD_OVERRIDE_OPT_LEVEL=0
cargo --config 'profile.dev.package."*".opt-level=0' "$1" -Zbuild-std=std,panic_abort --target "$target" "${@:2}"
echo "apple: type-checked for $target with rust-src $version: ${*:2}"
