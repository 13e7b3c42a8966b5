#!/bin/sh
# Runs tests again and again, and stops at the first failure: by default the hardest one, fifty times.
#
#     tests/again.sh [BINARY [NAME [TIMES]]]    the tests of a binary whose names contain NAME
#
# The library, its examples and the tests are built once, before the first run.
set -eu
cd "$(dirname "$0")/.."

binary=${1:-standalone}
name=${2:-faults::orphans::lost_answers_and_late_requests_leave_no_zombie}
times=${3:-50}
cargo test --quiet --workspace --all-features --no-run
export LOCK_TEST_BUILT=1
run=1
while [ "$run" -le "$times" ]; do
    log=$(cargo test --quiet --workspace --all-features --test "$binary" -- "$name" --nocapture 2>&1) || {
        printf '%s\n' "$log"
        echo "run $run of $times failed" >&2
        exit 1
    }
    printf '%s\n' "$log" | grep -E "longest time|zombies" || true
    echo "run $run of $times: passed"
    run=$((run + 1))
done
