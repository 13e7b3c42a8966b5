#!/bin/sh
# Builds the Go peer: $1/go/run. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
peer=$1/go

# Whatever is newer than what was built is built again.
[ -x "$peer/run" ] && [ -z "$(find . -type f -newer "$peer/run")" ] && exit
echo "building $peer"
mkdir -p "$peer"
go build -mod=readonly -o "$peer/run" .
touch "$peer/run"
