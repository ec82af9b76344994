#!/usr/bin/env bash
# Install other people's benchmark clients into .real/venv-peers-NAME, one
# environment each, since their requirements contradict each other:
#
#   llama-benchy  guidellm  aiperf  vllm (for `vllm bench serve`)
#
# With names as arguments only those. vllm is left out unless named: its wheel
# brings several GB of libraries for GPUs. A peer that does not install is said
# on stderr and is no failure: what uses them prints that it was not there. A
# second call does nothing for a peer that is there.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
real=${TWOPOINT_REAL:-$(cd "$here/../.." && pwd)/.real}

# What was tried; a later version of a client is another client.
declare -A pinned=([llama-benchy]=0.4.0 [guidellm]=0.8.1 [aiperf]=0.13.0 [vllm]="")
peers=("${@:-llama-benchy guidellm aiperf}")

say() { echo "peers: $*" >&2; }

# tokenizer VENV puts twopoint/bytes where the libraries look for what they have
# fetched before.
tokenizer() {
    local commit=0000000000000000000000000000000000000001 model=$1/hf/hub/models--twopoint--bytes
    mkdir -p "$model/refs" "$model/snapshots/$commit"
    printf %s "$commit" >"$model/refs/main"
    "$1/bin/python" -I "$here/tokenizer.py" "$model/snapshots/$commit" >>"$1/log" 2>&1
}

mkdir -p "$real"
exec 9>"$real/peers.lock"
flock 9

for name in ${peers[*]}; do
    venv=$real/venv-peers-$name
    want=$name${pinned[$name]:+==${pinned[$name]}}
    [[ $(cat "$venv/installed" 2>/dev/null) == "$want" ]] && continue
    say "installing $want"
    rm -rf "$venv"
    if python3 -m venv "$venv" >&2 && "$venv/bin/pip" install --quiet --disable-pip-version-check "$want" >"$venv/log" 2>&1 && tokenizer "$venv"; then
        echo "$want" >"$venv/installed"
    else
        say "$name does not install: $(tail -n 1 "$venv/log" 2>/dev/null)"
    fi
done
exit 0
