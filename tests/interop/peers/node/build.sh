#!/bin/sh
# Builds the Node peers: $1/node/run. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
peer=$1/node

# Whatever is newer than what was built is built again.
[ -x "$peer/run" ] && [ -z "$(find . -type f -newer "$peer/run")" ] && exit
echo "building $peer"
rm -rf "$peer"
mkdir -p "$peer"
cp package.json package-lock.json peer.js "$peer/"
npm ci --prefix "$peer" --silent --no-audit --no-fund
{
    echo '#!/bin/sh'
    echo "exec node '$peer/peer.js' \"\$@\""
} >"$peer/run.new"
chmod +x "$peer/run.new"
mv "$peer/run.new" "$peer/run" # last: what has its name is whole
