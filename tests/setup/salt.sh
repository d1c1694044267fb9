#!/usr/bin/env bash
# Makes a virtual environment with one release of Salt: salt.sh VERSION. The packages are pinned in salt-VERSION.txt;
# a change of that file makes it anew.

. "$(dirname "$0")/common.sh"

version=$1
pins=$here/salt-$version.txt
venv=$RETURNERD_CACHE/salt-$version
stamp=$venv/returnerd-pins.txt

[ -f "$pins" ] || fail "there is no list of packages for Salt $version: $pins"
if cmp -s "$pins" "$stamp" && [ -x "$venv/bin/salt-master" ] && [ -x "$venv/bin/python" ]; then
    exit 0
fi

# Usable: 3.10 to 3.13, with venv, pip and the headers that extension modules are compiled with.
usable() {
    "$1" - 2>/dev/null <<'PY'
import ensurepip, os, sys, sysconfig, venv
header = os.path.join(sysconfig.get_path("include"), "Python.h")
sys.exit(not ((3, 10) <= sys.version_info[:2] <= (3, 13) and os.path.exists(header)))
PY
}
find_python() {
    local candidate
    for candidate in python3.11 python3 python3.12 python3.10 python3.13 /usr/bin/python3; do
        if command -v "$candidate" >/dev/null && usable "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}
python=$(find_python) || {
    "$here/packages.sh" "python3-venv:/nowhere" "python3-dev:/nowhere" "gcc:cc"
    python=$(find_python) || fail "Python 3.10 to 3.13 with venv, pip and headers is needed"
}

began=$(date +%s)
say "installing Salt $version with $("$python" --version) into $venv (some minutes)"
mkdir -p "$RETURNERD_CACHE"
rm -rf "$venv"
quietly "$python" -m venv "$venv"
# What follows this heading in the list Salt itself does not ask for.
mapfile -t drivers < <(sed -n '/^# Drivers /,$ { /^#/!p }' "$pins")
quietly "$venv/bin/python" -m pip install --no-input --disable-pip-version-check "salt==$version" "${drivers[@]}" \
    --constraint "$pins" ||
    fail "pip could not install Salt $version"
"$venv/bin/salt-master" --version >/dev/null || fail "the installed salt-master does not run"
cp "$pins" "$stamp"
say "installed Salt $version in $(since "$began")"
