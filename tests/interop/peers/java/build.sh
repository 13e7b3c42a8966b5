#!/bin/sh
# Builds the Redisson peer once for each version: $1/redisson-VERSION/run. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
out=$1

# HSET instead of HINCRBY; before the fenced lock; the latch key; renewal in batches; the newest.
versions="3.12.0 3.17.7 3.27.2 3.45.1 4.7.0"

for version in $versions; do
    peer=$out/redisson-$version
    # Whatever is newer than what was built is built again.
    [ -x "$peer/run" ] && [ -z "$(find . -type f -newer "$peer/run")" ] && continue
    echo "building $peer"
    rm -rf "$peer"
    mvn -q --batch-mode -Dstyle.color=never -Dredisson.version="$version" -Dout="$peer" compile
    {
        echo '#!/bin/sh'
        # Two seconds of a program that runs for ten: start soon, and do not compile what runs once.
        echo "exec java -Xshare:auto -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx192m -cp '$peer/classes:$peer/lib/*' peer.Main \"\$@\""
    } >"$peer/run.new"
    chmod +x "$peer/run.new"
    mv "$peer/run.new" "$peer/run" # last: what has its name is whole
done
