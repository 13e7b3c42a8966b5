#!/bin/sh
# Builds the Rust peers, in the folder $1. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
peer=$1

export CARGO_TARGET_DIR="$peer/target"
# Cargo goes by the times of files, which are older where an older state was checked out. What it fetched stays built.
cargo clean --quiet --package distlock-interop-rust
cargo build --locked --quiet
cp "$peer/target/debug/peer" "$peer/run"
