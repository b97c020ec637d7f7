#!/bin/sh
# Makes a virtual environment that has pip: make_venv.sh PYTHON FOLDER.
# Debian's Python comes without ensurepip, of which `venv` takes pip: then whatever else makes environments is used, or
# Debian's package that is missing is installed.
set -eu
python=$1
folder=$2

has_ensurepip() {
    "$python" -c 'import ensurepip' 2>/dev/null
}

if ! has_ensurepip; then
    if command -v virtualenv >/dev/null; then
        exec virtualenv --quiet --python "$python" "$folder"
    fi
    if command -v uv >/dev/null; then
        exec uv venv --quiet --seed --python "$python" "$folder"
    fi
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        echo "$python has no ensurepip: installing Debian's python3-venv"
        # A list of packages that is too old, or none, is one reason why an install fails.
        apt-get install -qq -y python3-venv >/dev/null 2>&1 ||
            { apt-get update -qq && apt-get install -qq -y python3-venv >/dev/null; } || true
    fi
fi
if ! has_ensurepip; then
    echo "$python has no ensurepip and cannot make a virtual environment: install python3-venv (Debian), virtualenv or uv" >&2
    exit 2
fi
exec "$python" -m venv "$folder"
