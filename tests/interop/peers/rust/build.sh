#!/bin/sh
# Builds the Rust peers: $1/rust/run. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
peer=$1/rust

# Whatever is newer than what was built is built again.
[ -x "$peer/run" ] && [ -z "$(find . -type f -newer "$peer/run")" ] && exit
echo "building $peer"
CARGO_TARGET_DIR="$peer/target" cargo build --locked --quiet
cp "$peer/target/debug/peer" "$peer/run.new"
mv "$peer/run.new" "$peer/run" # last: what has its name is whole
