#!/usr/bin/env bash
# Builds every plugin for wasm32-wasip2 and puts it at $CARGO_TARGET_DIR/plugins/NAME.wasm, for the crate returner-NAME; those
# that only tests use, at $CARGO_TARGET_DIR/guests/NAME.wasm. A plugin that has not changed keeps its file, so that caches of compiled plugins stay good.

. "$(dirname "$0")/common.sh"

wasm_args=()
if [ -f "$RETURNERD_CACHE/wasm.env" ]; then . "$RETURNERD_CACHE/wasm.env"; fi
# These would replace what .cargo/config.toml says for the target.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS

cd "$here/../.."
names() { sed -n 's/^name *= *"\(returner-[^"]*\)".*/\1/p' "$@"; }
mapfile -t plugins < <(names plugins/*/Cargo.toml)
mapfile -t guests < <(names tests/guests/*/Cargo.toml)
crates=("${plugins[@]}" "${guests[@]}")

cargo build --quiet --profile plugin --target wasm32-wasip2 "${wasm_args[@]}" "${crates[@]/#/--package=}"

built=$CARGO_TARGET_DIR/wasm32-wasip2/plugin
collect() {
    local into=$CARGO_TARGET_DIR/$1 crate name file
    shift
    mkdir -p "$into"
    for crate in "$@"; do
        name=${crate#returner-} file=$built/${crate//-/_}.wasm
        if ! cmp -s "$file" "$into/$name.wasm"; then
            cp "$file" "$into/.$name.new"
            mv "$into/.$name.new" "$into/$name.wasm"
            echo "plugin $name: $(($(stat -c %s "$file") / 1024)) KiB"
        fi
    done
    for file in "$into"/*.wasm; do
        name=$(basename "$file" .wasm)
        case " $* " in *" returner-$name "*) ;; *) rm -f "$file" ;; esac
    done
}
collect plugins "${plugins[@]}"
collect guests "${guests[@]}"
