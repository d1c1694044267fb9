# Shared by the set-up scripts: where things go and how they speak. Sourced, never run.
# shellcheck shell=bash

set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
export RETURNERD_CACHE=${RETURNERD_CACHE:-$HOME/.cache/returnerd}
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$RETURNERD_CACHE/target}

say() { printf 'setup: %s\n' "$*" >&2; }

fail() {
    printf 'setup: error: %s\n' "$*" >&2
    exit 1
}

# Runs a command whose output matters only when it fails.
quietly() {
    local log
    log=$(mktemp)
    if ! "$@" >"$log" 2>&1 </dev/null; then
        tail -n 40 "$log" >&2
        rm -f "$log"
        return 1
    fi
    rm -f "$log"
}

# Prints the seconds since the moment given, for messages.
since() { printf '%s s' "$(($(date +%s) - $1))"; }
