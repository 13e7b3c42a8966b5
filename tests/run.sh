#!/usr/bin/env bash
# Everything that must pass before a change lands: style, lints, tests, documentation.
#
#   tests/run.sh                    what a change is judged by: under ten minutes on two cores
#   tests/run.sh --all              all mounts, all libraries beside ours, the long tests
#   tests/run.sh --soak DURATION    the same again and again, with other seeds, as in 2h
#
# Installs redis-server and postgresql from Debian if they are missing; REDIS_SERVER=PATH runs the
# suite on another server's binary. `--all` also installs what the libraries of tests/interop are built with.
set -euo pipefail
cd "$(dirname "$0")/.."

for tool in cargo cargo-clippy rustfmt; do
    command -v "$tool" >/dev/null 2>&1 || {
        echo "$tool is missing: install a Rust toolchain (1.88 or newer) with clippy and rustfmt, as from https://rustup.rs" >&2
        exit 1
    }
done

missing=()
[ -n "${REDIS_SERVER:-}" ] || command -v redis-server >/dev/null 2>&1 || missing+=(redis-server)
compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null || missing+=(postgresql)
# A pooler, for some of the long tests.
case " $* " in *" --all "*) command -v pgbouncer >/dev/null 2>&1 || missing+=(pgbouncer) ;; esac
if ((${#missing[@]})); then
    if ! command -v apt-get >/dev/null 2>&1; then
        echo "the tests need redis-server (6.2 or newer; REDIS_SERVER names another binary) and" \
            "PostgreSQL 15 or newer in /usr/lib/postgresql, as on Debian: missing are ${missing[*]}" >&2
        exit 1
    fi
    as_root=""
    [ "$(id -u)" = 0 ] || as_root=sudo
    $as_root apt-get update -q
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${missing[@]}"
fi

# With the features that the tests have, so that nothing is built twice.
cargo build --workspace --all-features --bin suite --bin distlock
exec "${CARGO_TARGET_DIR:-target}/debug/suite" "$@"
