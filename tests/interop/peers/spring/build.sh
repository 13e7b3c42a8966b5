#!/bin/sh
# Builds the peers ShedLock and Spring Integration, in the folder $1. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
peer=$1

rm -rf "$peer"
mvn -q --batch-mode -Dstyle.color=never -Dout="$peer" compile
# What knows nothing of a library is the Redisson peer's, too.
shared=$(grep '\.java$' shared)
# shellcheck disable=SC2086 # a list of words
javac -Werror -Xlint:all,-processing -d "$peer/classes" -cp "$peer/lib/*" src/peer/*.java $shared
cp ../java/run "$peer/"
