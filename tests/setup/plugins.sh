#!/usr/bin/env bash
# Builds every plugin for wasm32-wasip2 and puts it at $CARGO_TARGET_DIR/plugins/NAME.wasm, for the crate returner-NAME.
# A plugin that has not changed keeps its file, so that caches of compiled plugins stay good.

. "$(dirname "$0")/common.sh"

wasm_args=()
if [ -f "$RETURNERD_CACHE/wasm.env" ]; then . "$RETURNERD_CACHE/wasm.env"; fi
# These would replace what .cargo/config.toml says for the target.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS

cd "$here/../.."
crates=()
for manifest in plugins/*/Cargo.toml; do
    crates+=("$(sed -n 's/^name *= *"\(returner-[^"]*\)".*/\1/p' "$manifest" | head -n 1)")
done

cargo build --quiet --profile plugin --target wasm32-wasip2 "${wasm_args[@]}" "${crates[@]/#/--package=}"

built=$CARGO_TARGET_DIR/wasm32-wasip2/plugin
into=$CARGO_TARGET_DIR/plugins
mkdir -p "$into"
for crate in "${crates[@]}"; do
    name=${crate#returner-} file=$built/${crate//-/_}.wasm
    if ! cmp -s "$file" "$into/$name.wasm"; then
        cp "$file" "$into/.$name.new"
        mv "$into/.$name.new" "$into/$name.wasm"
        echo "plugin $name: $(($(stat -c %s "$file") / 1024)) KiB"
    fi
done
for file in "$into"/*.wasm; do
    name=$(basename "$file" .wasm)
    case " ${crates[*]} " in *" returner-$name "*) ;; *) rm -f "$file" ;; esac
done
