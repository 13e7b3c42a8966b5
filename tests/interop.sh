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
# CARGO_TARGET_DIR       the peers are built in its folder `interop`; `target/interop` otherwise. A peer finds its files from
#                        where it is itself: that folder may be moved or copied.
#
# Twice at once in one target: the peers are built by one after the other, the second finds them done. The tests then run
# side by side. Each run has servers and programs of its own, so none disturbs what another asserts about a lock; but they
# take one machine's time from each other, and what was measured is worth nothing then. Whoever changes a peer meanwhile and
# calls this has it built under the feet of the tests that run.
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
        go) go version ;;
        rust) cargo --version ;;
        *) return 1 ;;
    esac >/dev/null 2>&1
}

# What is there, for whoever reads what was tested.
version_of() {
    case $1 in
        java) java -version 2>&1 | head -n 1 ;;
        python) python3 --version ;;
        node) echo "node $(node --version)" ;;
        go) go version ;;
        rust) cargo --version ;;
    esac
}

# What Debian calls it.
packages() {
    case $1 in
        java) echo default-jdk-headless maven ;;
        python) echo python3 python3-venv ;;
        node) echo nodejs npm ;;
        go) echo golang ;;
        rust) die "cargo is missing: install a Rust toolchain (1.88 or newer), as from https://rustup.rs" ;;
        *) die "there are no peers in $peers/$1" ;;
    esac
}

install() {
    language=$1
    wanted=$(packages "$language")
    # shellcheck disable=SC2086 # a list of words
    set -- $wanted
    command -v apt-get >/dev/null 2>&1 ||
        die "the $language peers need $*: install them, or leave them out with DISTLOCK_INTEROP_SKIP=$language"
    as_root=""
    [ "$(id -u)" = 0 ] || as_root=sudo
    [ -z "$as_root" ] || command -v sudo >/dev/null 2>&1 ||
        die "the $language peers need $*: install them as root, or leave them out with DISTLOCK_INTEROP_SKIP=$language"
    $as_root apt-get update -q
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

is_skipped() {
    case ",$(echo "${DISTLOCK_INTEROP_SKIP:-}" | tr ' ' ','), " in
        *",$1,"*) return 0 ;;
        *) return 1 ;;
    esac
}

# The peers of a folder, each of which is built by itself.
peers_of() {
    case $1 in
        java) sed -n 's/^\([0-9][^ ]*\).*/redisson-\1/p' "$peers/java/versions" ;;
        *) echo "$1" ;;
    esac
}

# What the peers of a folder are made of: the language's version, and the checksums of its files and of those of other
# folders that its file `shared` names. All of these lines are a peer's stamp, so that a `diff` tells why it is built again.
sources_of() (
    version_of "$(language_of "$1")"
    cd "$peers/$1"
    files=$(find . \( -name target -o -name node_modules -o -name __pycache__ \) -prune -o -type f -print)
    [ ! -e shared ] || files=$(printf '%s\n' "$files" && cat shared)
    printf '%s\n' "$files" | LC_ALL=C sort | xargs -d '\n' sha256sum
)

# Builds a peer of a folder whose sources are these, unless that is what lies there. The times of files tell nothing: a
# checkout and a copy set them as they like.
build() {
    folder=$1 peer=$2 sources=$3
    if [ -x "$peer/run" ] && [ -e "$peer/stamp" ] && [ "$(cat "$peer/stamp")" = "$sources" ]; then
        return
    fi
    echo "building $peer"
    mkdir -p "$peer"
    # Without either until all of it is there: what is half built is neither run nor taken for done.
    rm -f "$peer/stamp" "$peer/run"
    "$peers/$folder/build.sh" "$peer"
    echo "$sources" >"$peer/stamp"
}

prepare() {
    target=${CARGO_TARGET_DIR:-target}/interop
    mkdir -p "$target"
    target=$(cd "$target" && pwd)
    [ -n "$target" ] || die "there is no folder to build the peers in"
    # One at a time: two would build in the same folders.
    exec 9>"$target/lock"
    flock 9
    if [ $# = 0 ]; then
        folders=$(cd "$peers" && ls -d -- */)
        # shellcheck disable=SC2086 # a list of words
        set -- $folders
    fi
    for folder; do
        folder=${folder%/}
        language=$(language_of "$folder")
        if is_skipped "$language"; then
            echo "skipped: the $language peers (DISTLOCK_INTEROP_SKIP=$DISTLOCK_INTEROP_SKIP)"
            continue
        fi
        has "$language" || install "$language"
        has "$language" || die "$language is not what it should be: see has() in tests/interop.sh"
        version_of "$language"
        sources=$(sources_of "$folder")
        names=$(peers_of "$folder")
        for name in $names; do
            build "$folder" "$target/$name" "$sources"
        done
    done
    exec 9>&-
}

# Not behind an `&&` or in a condition: a failure in there would then go unnoticed.
case ${1:-} in
    prepare)
        shift
        prepare "$@"
        ;;
    "")
        prepare
        exec cargo test --all-features --test interop -- --nocapture
        ;;
    *) die "tests/interop.sh knows \"prepare\" and nothing else" ;;
esac
