#!/bin/sh
# Builds the Python peers, in the folder $1. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
peer=$1

rm -rf "$peer"
# For its pip only, which Python alone need not have: what is in it names its own place, and could not be moved.
python3 -m venv "$peer/venv"
"$peer/venv/bin/pip" install --quiet --disable-pip-version-check --target "$peer/lib" --requirement requirements.txt
rm -rf "$peer/venv"
cp peer.py run "$peer/"
