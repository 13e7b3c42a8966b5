#!/bin/sh
# Builds the Go peer, in the folder $1. Called by tests/interop.sh.
set -eu
cd "$(dirname "$0")"
peer=$1

# What go.mod asks for may be newer than the Go that is there, as Debian's is. From 1.21 on that fetches the other one by
# itself; before, it can fetch it as a module, whose programs are not marked as such.
export GOTOOLCHAIN=auto
go=go
case $(go version) in
    *" go1.1"[0-9]* | *" go1.20"* | *" go1."[0-9][!0-9]*)
        version=$(sed -n 's/^go //p' go.mod)
        go=$peer/toolchain/bin/go
        if ! [ -x "$go" ]; then
            rm -rf "$peer/fetched" "$peer/toolchain"
            mkdir "$peer/fetched"
            (
                cd "$peer/fetched"
                go mod init fetched 2>/dev/null
                wanted=golang.org/toolchain@v0.0.1-go$version.$(go env GOOS)-$(go env GOARCH)
                cp -R "$(go mod download -json "$wanted" | sed -n 's/^.*"Dir": "\(.*\)".*$/\1/p')" toolchain
                chmod -R u+w toolchain
                chmod +x toolchain/bin/* toolchain/pkg/tool/*/*
                mv toolchain ..
            )
            rm -rf "$peer/fetched"
        fi
        ;;
esac

"$go" build -mod=readonly -o "$peer/run" .
