#!/bin/sh
# Locks of other libraries beside ours: builds a program for each of them (tests/interop/peers),
# with the library as its registry has it, and runs the tests that share locks with them.
#
#   tests/interop.sh                    builds what is missing or old, and runs the tests
#   tests/interop.sh prepare            builds, and runs nothing
#   tests/interop.sh prepare --default  the same for this tier (or --all), whatever LOCK_TEST_TIER is
#   tests/interop.sh prepare java go    the same for these folders only, in all versions
#   tests/interop.sh changed [BASE]     whether a change touches what is tested here: see changed()
#   tests/interop.sh has java           whether the peers of this language can be built here
#
# LOCK_TEST_TIER          `default`, or unset: the newest Redisson and redis-py. Nothing is
#                        installed: a missing language is skipped, with a line on standard error.
#                        `all`: all libraries in all versions. What is missing is installed on
#                        Debian, and a failure elsewhere.
# DISTLOCK_INTEROP_SKIP  languages to leave out, as in "java,go".
# CARGO_TARGET_DIR       the peers are built in its folder `interop`; `target/interop` otherwise. A
#                        peer finds its files from where it is: that folder may be moved or copied.
#
# Twice at once in one target: the second waits for the first to build. The tests then run side by
# side, each with servers and programs of its own, but what they measure is worth nothing then.
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

# What is there, for the report of what was tested.
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
        rust) die "cargo is missing: install Rust (1.88 or newer), as from https://rustup.rs" ;;
        *) die "there are no peers in $peers/$1" ;;
    esac
}

install() {
    language=$1
    or_skip=", or leave them out with DISTLOCK_INTEROP_SKIP=$language"
    wanted=$(packages "$language")
    # shellcheck disable=SC2086 # a list of words
    set -- $wanted
    command -v apt-get >/dev/null 2>&1 ||
        die "the $language peers need $*: install them$or_skip"
    as_root=""
    [ "$(id -u)" = 0 ] || as_root=sudo
    [ -z "$as_root" ] || command -v sudo >/dev/null 2>&1 ||
        die "the $language peers need $*: install them as root$or_skip"
    $as_root apt-get update -q
    $as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

is_skipped() {
    case ",$(echo "${DISTLOCK_INTEROP_SKIP:-}" | tr ' ' ','), " in
        *",$1,"*) return 0 ;;
        *) return 1 ;;
    esac
}

# The peers of a folder in a tier, each of which is built by itself. The newest version is last.
peers_of() {
    case $1-$2 in
        java-all) sed -n 's/^\([0-9][^ ]*\).*/redisson-\1/p' "$peers/java/versions" ;;
        java-*) peers_of java all | tail -n 1 ;;
        *) echo "$1" ;;
    esac
}

# What the peers of a folder are made of: the language's version, and the checksums of its files and
# of those of other folders that its file `shared` names. These lines are a peer's stamp, so that a
# `diff` tells why it is built again.
sources_of() (
    version_of "$(language_of "$1")" 2>&1 || true
    cd "$peers/$1"
    files=$(find . \( -name target -o -name node_modules -o -name __pycache__ \) -prune \
        -o -type f -print)
    [ ! -e shared ] || files=$(printf '%s\n' "$files" && cat shared)
    printf '%s\n' "$files" | LC_ALL=C sort | xargs -d '\n' sha256sum
)

# Whether this peer is there, and made of these sources. The times of files tell nothing: a checkout
# and a copy set them as they like.
is_built() {
    [ -x "$1/run" ] && [ -e "$1/stamp" ] && [ "$(cat "$1/stamp")" = "$2" ]
}

# Builds a peer of a folder whose sources are these, unless it is there.
build() {
    folder=$1 peer=$2 sources=$3
    if is_built "$peer" "$sources"; then
        return
    fi
    echo "building $peer"
    mkdir -p "$peer"
    # Without either until all of it is there: what is half built is neither run nor taken for done.
    rm -f "$peer/stamp" "$peer/run"
    "$peers/$folder/build.sh" "$peer"
    echo "$sources" >"$peer/stamp"
}

# Builds the peers of one folder in a tier.
prepare_folder() {
    folder=$1 tier=$2
    language=$(language_of "$folder")
    if is_skipped "$language"; then
        echo "skipped: the $language peers (DISTLOCK_INTEROP_SKIP=$DISTLOCK_INTEROP_SKIP)" >&2
        return
    fi
    names=$(peers_of "$folder" "$tier")
    sources=$(sources_of "$folder")
    missing=""
    for name in $names; do
        is_built "$target/$name" "$sources" || missing="$missing $name"
    done
    [ -n "$missing" ] || return 0
    if ! has "$language"; then
        if [ "$tier" = default ]; then
            echo "skipped: $language is not installed: its peers need $(packages "$language")" >&2
            return
        fi
        install "$language"
        has "$language" || die "$language is not what it should be: see has() in tests/interop.sh"
        sources=$(sources_of "$folder")
    fi
    version_of "$language"
    for name in $missing; do
        build "$folder" "$target/$name" "$sources"
    done
}

prepare() {
    tier=${LOCK_TEST_TIER:-default}
    case ${1:-} in
        --default | --all)
            tier=${1#--}
            shift
            ;;
    esac
    target=${CARGO_TARGET_DIR:-target}/interop
    mkdir -p "$target"
    target=$(cd "$target" && pwd)
    [ -n "$target" ] || die "there is no folder to build the peers in"
    # One at a time: two would build in the same folders.
    exec 9>"$target/lock"
    flock 9
    if [ $# != 0 ]; then
        # What is named is wanted whole.
        tier=all
    elif [ "$tier" = default ]; then
        set -- java python
    elif [ "$tier" = all ]; then
        folders=$(cd "$peers" && ls -d -- */)
        # shellcheck disable=SC2086 # a list of words
        set -- $folders
    else
        die "LOCK_TEST_TIER=$tier is no tier: there are \"default\" and \"all\""
    fi
    for folder; do
        prepare_folder "${folder%/}" "$tier"
    done
    exec 9>&-
}

# What decides whether another library and ours mean the same.
watched='^(lock-redis/src/((format|lua|classic|node/quorum)/|keys\.rs$|wakeups/channel\.rs$)|tests/interop(/|\.sh$))'

# Whether a change touches that, with what is not committed: since BASE (an argument or the
# environment), or since this branch left its upstream or the default branch, or in the last commit.
# Exits 0 if it does, 1 if not, and 2 with the word "unknown" without git or without a base.
changed() {
    git rev-parse --git-dir >/dev/null 2>&1 || unknown "there is no git, or no repository"
    base=${1:-${BASE:-$(branch_point)}}
    git rev-parse --verify --quiet "${base:-none}^{commit}" >/dev/null || unknown "there is no base"
    # From the common ancestor: what others changed since does not count.
    from=$(git merge-base "$base" HEAD 2>/dev/null) || from=$base
    names=$(git diff --name-only "$from" -- && git ls-files --others --exclude-standard) ||
        unknown "git cannot compare with $from"
    if touched=$(printf '%s\n' "$names" | grep -E "$watched"); then
        echo "changed since $from:"
        printf '%s\n' "$touched"
        return 0
    fi
    echo "unchanged since $from"
    return 1
}

unknown() {
    echo "unknown: $*"
    exit 2
}

# Where this branch left another one; where it is that one itself, the commit before.
branch_point() {
    head=$(git rev-parse HEAD 2>/dev/null) || return 0
    for other in '@{upstream}' origin/HEAD origin/main origin/master main master; do
        point=$(git merge-base "$other" HEAD 2>/dev/null) || continue
        if [ "$point" != "$head" ]; then
            echo "$point"
            return
        fi
    done
    git rev-parse --verify --quiet 'HEAD~1' || true
}

# Not behind an `&&` or in a condition: a failure in there would then go unnoticed.
case ${1:-} in
    prepare)
        shift
        prepare "$@"
        ;;
    "")
        prepare
        exec cargo test --workspace --all-features --test interop
        ;;
    changed)
        shift
        changed "$@"
        ;;
    has) has "$2" ;;
    *) die "tests/interop.sh knows \"prepare\", \"changed\" and \"has\", and nothing else" ;;
esac
