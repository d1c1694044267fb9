#!/usr/bin/env bash
# Checks the dependencies with cargo-deny where it is there. DENY=install installs it into the cache and fetches its
# advisories. Without network it checks licences, sources and bans, and says what it left out.

. "$(dirname "$0")/common.sh"

PATH=$RETURNERD_CACHE/tools/bin:$PATH
if ! command -v cargo-deny >/dev/null; then
    if [ "${DENY:-}" != install ]; then
        echo "cargo-deny: skipped, it is not installed (\`make test DENY=install\` installs it)"
        exit 0
    fi
    say "installing cargo-deny (some minutes)"
    CARGO_TARGET_DIR=$RETURNERD_CACHE/tools/build quietly cargo install --locked cargo-deny --root "$RETURNERD_CACHE/tools"
fi
cd "$here/../.."
cargo deny --offline --log-level warn check bans licenses sources
if [ "${DENY:-}" = install ]; then cargo deny fetch db || true; fi
if compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-db*/*" >/dev/null; then
    cargo deny --offline --log-level warn check advisories
else
    echo "cargo-deny: advisories skipped, their data base is not here (\`make test DENY=install\` fetches it)"
fi
