#!/usr/bin/env bash
# Makes the compiler able to build for wasm32-wasip2: through rustup, or, where rustup has no way to its server, from
# Debian's source of the standard library of the same release. In the second case wasm.env in the cache says how to build.

. "$(dirname "$0")/common.sh"

target=wasm32-wasip2
settings=$RETURNERD_CACHE/wasm.env
library=$(rustc --print target-libdir --target $target) || fail "rustc is missing; hint: install Rust 1.95 or later with rustup"

has_library() { compgen -G "$library/libstd-*.rlib" >/dev/null; }
from=${WASM_FROM:-rustup} # `debian` takes the second way even where the first would do
if [ "$from" = rustup ] && has_library; then
    rm -f "$settings"
    exit 0
fi
release=$(rustc --version)
[ "$(head -n 1 "$settings" 2>/dev/null)" != "# $release" ] || exit 0

began=$(date +%s)
if [ "$from" = rustup ] && command -v rustup >/dev/null; then
    say "adding the target $target with rustup"
    if quietly rustup target add $target && has_library; then
        rm -f "$settings"
        say "added $target in $(since "$began")"
        exit 0
    fi
    say "rustup could not; taking Debian's source of the standard library instead"
fi

linker=wasm-component-ld
[ -n "$(find "$(rustc --print sysroot)/lib/rustlib" -name $linker -print -quit)" ] || command -v $linker >/dev/null ||
    fail "this rustc comes without $linker; hint: install Rust with rustup"
"$here/packages.sh" "apt:apt-get" "dpkg:dpkg-deb"
number=$(cut -d' ' -f2 <<<"$release")
suite=${WASM_SUITE:-trixie-backports}
work=$RETURNERD_CACHE/wasm-$number
rm -rf "$work"
mkdir -p "$work"/apt/{lists/partial,archives/partial}
# The mirror that this machine uses, with the suite that holds several releases of Rust. The system's own lists and
# packages stay as they are, and none of this needs root.
mirror=$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' | grep -m1 '/debian/\?$' || true)
[ -n "$mirror" ] || fail "no Debian mirror is configured; hint: run \`rustup target add $target\` where there is a network"
echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $suite main" >"$work/apt/sources.list"
apt=(apt-get -qq -o "Dir::Etc::sourcelist=$work/apt/sources.list" -o Dir::Etc::sourceparts=-
    -o "Dir::State::lists=$work/apt/lists" -o "Dir::Cache::archives=$work/apt/archives" -o Dir::Cache::pkgcache=
    -o Dir::Cache::srcpkgcache= -o APT::Sandbox::User=)
quietly "${apt[@]}" update || fail "the package list of $suite cannot be fetched"
source=$(apt-cache "${apt[@]:2}" madison rust-src | awk -v want="$number" '$3 ~ "^" want "[+~-]" { print $3; exit }')
[ -n "$source" ] || fail "$suite has no rust-src $number; hint: run \`rustup target add $target\` where there is a network"
(cd "$work/apt" && quietly "${apt[@]}" download "rust-src=$source" wasi-libc) || fail "cannot fetch rust-src and wasi-libc"
# Of 430 MB of source only the library is needed.
mkdir -p "$work/root"
dpkg-deb --fsys-tarfile "$work"/apt/rust-src_*.deb | tar -x -C "$work/root" --wildcards './usr/src/rustc-*/library'
dpkg-deb -x "$work"/apt/wasi-libc_*.deb "$work/root"
rm -rf "$work/apt"
sources=$(echo "$work"/root/usr/src/rustc-*/library)
objects=$(find "$work/root" -name crt1-reactor.o -path "*$target*" -printf '%h\n' | head -n 1)
headers=$(find "$work/root" -type d -path "*include/$target" | head -n 1)
[ -d "$sources/std" ] && [ -n "$objects" ] && [ -n "$headers" ] || fail "rust-src or wasi-libc of $suite has another layout"
cat >"$settings" <<EOF
# $release
export RUSTC_BOOTSTRAP=1
export __CARGO_TESTS_ONLY_SRC_ROOT='$sources'
export CFLAGS_wasm32_wasip2='--target=wasm32-wasi -isystem $headers'
wasm_args=(-Zbuild-std=std,panic_abort --config 'target.$target.rustflags=["-L", "native=$objects"]')
EOF
say "prepared $target from $suite in $(since "$began")"
