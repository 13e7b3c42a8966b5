#!/bin/sh
# Builds the Node peers, in the folder $1. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
peer=$1

rm -rf "$peer"
mkdir -p "$peer"
cp package.json package-lock.json peer.js "$peer/"
# It tells of what it installed, and silenced it does not tell of what went wrong.
if ! npm ci --prefix "$peer" --no-audit --no-fund >"$peer/npm.log" 2>&1; then
    cat "$peer/npm.log" >&2
    exit 1
fi
cp run "$peer/"
