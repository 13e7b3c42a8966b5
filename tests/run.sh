#!/usr/bin/env bash
# Everything that must pass before a change lands: style, lints, tests, documentation. Installs redis-server from Debian
# if it is missing, and what the peers of tests/interop.sh are built with; REDIS_SERVER=PATH runs the suite on another
# server's binary.
set -euo pipefail
cd "$(dirname "$0")/.."

step() { printf '\n== %s\n' "$*"; "$@"; }

for tool in cargo cargo-clippy rustfmt; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "$tool is missing: install a Rust toolchain (1.88 or newer) with clippy and rustfmt, as from https://rustup.rs" >&2
        exit 1
    }
done

if [ -z "${REDIS_SERVER:-}" ] && ! command -v redis-server >/dev/null 2>&1; then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "the tests need redis-server (6.2 or newer): install it, or name its binary in REDIS_SERVER" >&2
        exit 1
    fi
    as_root=""
    [ "$(id -u)" = 0 ] || as_root=sudo
    step $as_root apt-get update -q
    step $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q redis-server
fi

step cargo fmt --all --check
step cargo clippy --workspace --all-targets --all-features -- -D warnings
step cargo clippy --package distlock --no-default-features -- -D warnings
RUSTDOCFLAGS="-D warnings" step cargo doc --workspace --no-deps --all-features
step cargo build --examples
step tests/interop.sh prepare

# What failed stands between thousands of lines of what did not: it is told once more at the end.
output=$(mktemp)
trap 'rm -f "$output"' EXIT
if ! step cargo test --workspace --all-features --no-fail-fast 2>&1 | tee "$output"; then
    printf '\n== what failed\n'
    sed -n '/^failures:$/,/^test result/p' "$output" | tail -n 400
    tail -n 5 "$output"
    exit 1
fi
echo "all passed"
