#!/bin/sh
# Builds the peers ShedLock and Spring Integration: $1/spring/run. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
peer=$1/spring
# What knows nothing of a library is the Redisson peer's, too.
shared=../java/src/main/java/peer

# Whatever is newer than what was built is built again.
[ -x "$peer/run" ] && [ -z "$(find . "$shared" -type f -newer "$peer/run")" ] && exit
echo "building $peer"
rm -rf "$peer"
mvn -q --batch-mode -Dstyle.color=never -Dout="$peer" compile
javac -Werror -Xlint:all,-processing -d "$peer/classes" -cp "$peer/lib/*" src/peer/*.java "$shared/Count.java" \
    "$shared/Data.java" "$shared/Main.java" "$shared/Options.java" "$shared/Worker.java"
{
    echo '#!/bin/sh'
    # As Redisson's: start soon, and do not compile what runs once.
    echo "exec java -Xshare:auto -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xmx192m -cp '$peer/classes:$peer/lib/*' peer.Main \"\$@\""
} >"$peer/run.new"
chmod +x "$peer/run.new"
mv "$peer/run.new" "$peer/run" # last: what has its name is whole
