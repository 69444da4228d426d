#!/bin/sh
# Makes a virtual environment with pip in it, with whatever the machine has: venv, virtualenv, or venv without
# ensurepip (as on a Debian without python3-venv) and the system's pip.
# usage: make-venv.sh PYTHON FOLDER
set -eu
python=$1
folder=$2

if [ -z "$python" ] || ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    echo "Partibus needs Python 3.11 or later; found '${python:-none}'. Name one: make PYTHON=/path/to/python3.11 …" >&2
    exit 1
fi

# The AMQP engine is C, compiled at installation: say what is missing before pip says it in a hundred lines.
missing=
command -v gcc >/dev/null || command -v cc >/dev/null || missing="gcc libc6-dev"
"$python" -c 'import os, sysconfig; raise SystemExit(not os.path.exists(os.path.join(sysconfig.get_paths()["include"], "Python.h")))' ||
    missing="$missing python3-dev"
if [ -n "$missing" ]; then
    echo "A C compiler and Python's headers are needed to build the AMQP engine. On Debian: apt-get install $missing" >&2
    exit 1
fi

if "$python" -c 'import ensurepip, venv' 2>/dev/null && "$python" -m venv "$folder"; then
    exit 0
fi
rm -rf "$folder"
if "$python" -m virtualenv --version >/dev/null 2>&1; then
    exec "$python" -m virtualenv --quiet "$folder"
fi
if "$python" -m pip --version >/dev/null 2>&1 && "$python" -m venv --without-pip "$folder"; then
    exec "$python" -m pip --python "$folder/bin/python" install --quiet pip
fi
rm -rf "$folder"
echo "No way to make a virtual environment: install python3-venv (apt-get install python3-venv python3-dev gcc) and try again." >&2
exit 1
