#!/bin/sh
# Runs tests again and again, and stops at the first failure: by default the hardest one, fifty times.
#
#     tests/again.sh [NAME [TIMES]]        a part of the name of tests in tests/it
#
# The library, its examples and the tests are built once, before the first run.
set -eu
cd "$(dirname "$0")/.."

name=${1:-faults::orphans::lost_answers_and_late_requests_leave_no_zombie_and_every_job_is_exact}
times=${2:-50}
cargo build --quiet --all-features --examples
cargo test --quiet --all-features --test it --no-run
run=1
while [ "$run" -le "$times" ]; do
    log=$(cargo test --quiet --all-features --test it -- "$name" --nocapture 2>&1) || {
        printf '%s\n' "$log"
        echo "run $run of $times failed" >&2
        exit 1
    }
    printf '%s\n' "$log" | grep -E "longest time|zombies" || true
    echo "run $run of $times: passed"
    run=$((run + 1))
done
