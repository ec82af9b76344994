#!/usr/bin/env bash
# Fails if the main program contains code with a known vulnerability that it can
# reach. The vulnerability data is the module golang.org/x/vulndb, whose folder
# data/osv govulncheck reads as it is: only a module proxy is needed, and without
# one the data used last is used again. Its date is printed, since a clean result
# is worth no more than that.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

tool=v1.9.0         # of golang.org/x/vuln
control=GO-2021-0113 # what test/vuln/control is known to have
dir=$PWD/.real/vuln
mkdir -p "$dir"
export CGO_ENABLED=0

if [[ $(cat "$dir/tool" 2>/dev/null) != "$tool $(go env GOVERSION)" ]]; then
    GOBIN=$dir go install golang.org/x/vuln/cmd/govulncheck@$tool
    echo "$tool $(go env GOVERSION)" >"$dir/tool"
fi

if version=$(go list -m -f '{{.Version}}' golang.org/x/vulndb@latest 2>"$dir/proxy.log"); then
    go mod download "golang.org/x/vulndb@$version"
    echo "$version" >"$dir/data"
elif version=$(cat "$dir/data" 2>/dev/null); then
    echo "no module proxy, so the data of the last time is used: $(tail -n 1 "$dir/proxy.log")" >&2
else
    cat "$dir/proxy.log" >&2
    exit 1
fi
osv=$(go env GOMODCACHE)/golang.org/x/vulndb@$version/data/osv
day=${version#*-}
echo "vulnerability data of ${day:0:4}-${day:4:2}-${day:6:2}, $(ls "$osv" | wc -l) entries"

check() { "$dir/govulncheck" -db "file://$osv" -mode binary "$1"; }

# The check has to find what is known to be there; otherwise it proves nothing.
go -C test/vuln/control build -o "$dir/control" .
if found=$(check "$dir/control") || [[ $found != *"$control"* ]]; then
    echo "govulncheck does not find $control in a program that has it:" >&2
    echo "$found" >&2
    exit 1
fi

# With the Go release that go.mod names, whose library has its own fixes.
want=$(GOTOOLCHAIN=auto go env GOVERSION) here=$(go env GOVERSION)
if [[ $want != "$here" ]]; then
    echo "built with $want as go.mod asks; GOTOOLCHAIN=$(go env GOTOOLCHAIN) keeps other builds here at $here, with what $here has"
fi
GOTOOLCHAIN=auto go build -trimpath -o "$dir/twopoint" . # not stripped: symbols say what is reachable
check "$dir/twopoint" || {
    echo "repair with: go get MODULE@FIXED; for the standard library: go get toolchain@FIXED" >&2
    exit 1
}
