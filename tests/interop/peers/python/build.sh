#!/bin/sh
# Builds the Python peers: $1/python/run. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
peer=$1/python

# Whatever is newer than what was built is built again.
[ -x "$peer/run" ] && [ -z "$(find . -type f -newer "$peer/run")" ] && exit
echo "building $peer"
rm -rf "$peer"
python3 -m venv "$peer/venv"
"$peer/venv/bin/pip" install --quiet --disable-pip-version-check --requirement requirements.txt
cp peer.py "$peer/"
{
    echo '#!/bin/sh'
    echo "exec '$peer/venv/bin/python' '$peer/peer.py' \"\$@\""
} >"$peer/run.new"
chmod +x "$peer/run.new"
mv "$peer/run.new" "$peer/run" # last: what has its name is whole
