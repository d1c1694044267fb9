#!/usr/bin/env bash
# Runs the tests of the shim with the Python of each Salt environment, named by their releases.

. "$(dirname "$0")/common.sh"

cd "$here/../.."
if ! compgen -G 'tests/python/test_*.py' >/dev/null; then
    echo "tests/python: no test there"
    exit 0
fi
for version in "$@"; do
    echo "tests/python with Salt $version"
    PYTHONDONTWRITEBYTECODE=1 "$RETURNERD_CACHE/salt-$version/bin/python" -W ignore::ImportWarning -m unittest discover -s tests/python -p 'test_*.py'
done
