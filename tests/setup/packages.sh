#!/usr/bin/env bash
# Installs Debian packages: packages.sh PACKAGE:PROBE…, where PROBE is a command or a file (or a pattern of one) that the package brings.
# With every probe there it does nothing, needs no root and no network. No service is started.

. "$(dirname "$0")/common.sh"

PATH=$PATH:/usr/sbin:/sbin # where servers live, outside an ordinary user's path

missing=()
for pair in "$@"; do
    package=${pair%%:*} probe=${pair#*:}
    case $probe in
    /*) compgen -G "$probe" >/dev/null || missing+=("$package") ;;
    *) command -v "$probe" >/dev/null || missing+=("$package") ;;
    esac
done
[ ${#missing[@]} -gt 0 ] || exit 0

command -v apt-get >/dev/null || fail "these Debian packages, or what your system has in their place, are needed: ${missing[*]}"
by_hand="apt-get update && apt-get install --no-install-recommends ${missing[*]}"
if [ "$(id -u)" = 0 ]; then
    root=()
elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
    root=(sudo)
else
    fail "packages are missing and this is not root; run as root: $by_hand"
fi

began=$(date +%s)
say "installing Debian packages: ${missing[*]}"

# A server's package starts its service unless this file says no. Ours goes away again.
policy=/usr/sbin/policy-rc.d
if [ ! -e $policy ]; then
    printf '#!/bin/sh\nexit 101\n' | "${root[@]}" tee $policy >/dev/null
    "${root[@]}" chmod 755 $policy
    trap '"${root[@]}" rm -f $policy' EXIT
fi

apt=("${root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300)
install=("${apt[@]}" install --yes --no-install-recommends "${missing[@]}")
known() { apt-cache show --no-all-versions "${missing[@]}" >/dev/null 2>&1; }
if ! known || ! quietly "${install[@]}"; then
    # Without a package list, or with one that has gone stale.
    quietly "${apt[@]}" update || say "apt-get update had errors; going on with what it got"
    quietly "${install[@]}" || fail "could not install; try by hand: $by_hand"
fi
say "installed ${missing[*]} in $(since "$began")"
