#!/bin/sh
# Locks of other libraries beside ours: builds a program for each of them (tests/interop/peers), with the library as its registry
# has it, and runs the tests that share locks with them.
#
#   tests/interop.sh            builds what is missing or old, and runs the tests
#   tests/interop.sh prepare    builds, and runs nothing
#   tests/interop.sh prepare java go    the same for these folders only
#
# DISTLOCK_INTEROP_SKIP  languages to leave out, as in "java,go". Nothing else is left out: what is missing is installed on
#                        Debian, and a failure elsewhere.
# CARGO_TARGET_DIR       the peers are built in its folder `interop`; `target/interop` otherwise.
set -eu
cd "$(dirname "$0")/.."

peers=tests/interop/peers

die() { echo "$*" >&2; exit 1; }

# A folder is called by its language, or by what has a folder of its own.
language_of() {
    case $1 in
        spring) echo java ;;
        *) echo "$1" ;;
    esac
}

# Whether all of a language is there that its peers are built and run with.
has() {
    case $1 in
        java) javac -version && mvn -version ;;
        python) python3 -c 'import venv, ensurepip' ;;
        node) node --version && npm --version ;;
        # One that can fetch the version that redsync asks for: 1.21 or newer.
        go) go version && [ -n "$(go env GOTOOLCHAIN)" ] ;;
        rust) cargo --version ;;
        *) die "tests/interop.sh does not know what $1 needs" ;;
    esac >/dev/null 2>&1
}

# What Debian calls it.
packages() {
    case $1 in
        java) echo default-jdk-headless maven ;;
        python) echo python3 python3-venv ;;
        node) echo nodejs npm ;;
        go) echo golang ;;
        rust) echo cargo ;;
    esac
}

install() {
    # shellcheck disable=SC2046 # a list of words
    set -- "$1" $(packages "$1")
    language=$1
    shift
    command -v apt-get >/dev/null 2>&1 ||
        die "the $language peers need $*: install them, or leave them out with DISTLOCK_INTEROP_SKIP=$language"
    as_root=""
    [ "$(id -u)" = 0 ] || as_root=sudo
    $as_root apt-get update -q
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

is_skipped() {
    case ",$(echo "${DISTLOCK_INTEROP_SKIP:-}" | tr ' ' ','), " in
        *",$1,"*) return 0 ;;
        *) return 1 ;;
    esac
}

prepare() {
    target=${CARGO_TARGET_DIR:-target}/interop
    mkdir -p "$target"
    target=$(cd "$target" && pwd)
    [ $# -gt 0 ] || set -- $(cd "$peers" && ls -d -- */)
    for folder; do
        folder=$peers/${folder%/}
        language=$(language_of "$(basename "$folder")")
        if is_skipped "$language"; then
            echo "skipped: the $language peers (DISTLOCK_INTEROP_SKIP=$DISTLOCK_INTEROP_SKIP)"
            continue
        fi
        has "$language" || install "$language"
        has "$language" || die "$language is not what it should be: see has() in tests/interop.sh"
        "$folder/build.sh" "$target"
    done
}

case ${1:-} in
    prepare) shift && prepare "$@" ;;
    "") prepare && cargo test --all-features --test interop -- --nocapture ;;
    *) die "tests/interop.sh knows \"prepare\" and nothing else" ;;
esac
