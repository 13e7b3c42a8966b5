#!/bin/sh
# Builds the Redisson peer for one version, in the folder $1, .../redisson-VERSION. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
peer=$1
version=${peer##*/redisson-}

rm -rf "$peer"
mvn -q --batch-mode -Dstyle.color=never -Dredisson.version="$version" -Dout="$peer" compile
cp run "$peer/"
