#!/bin/sh
# Makes a virtual environment from a lock file, from nothing but a Python 3.11 to 3.13 with its venv module.
# Usage: environment.sh DIRECTORY LOCK [project]      `project` also installs this project, editable, and Keras 2.
# PYTHON names the interpreter. Without it python3, python3.13, 3.12, 3.11 and, on Linux, /usr/bin/python3 are tried: the first that fits and was compiled
# with profile-guided optimization is taken, as programs of the launcher take a quarter less processor time; if there is none, the first that fits.
# Distributions compile theirs so, pyenv does not by default.
set -eu

directory=$1
lock=$2
here=$(dirname "$0")

fits() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

# How this machine's package manager installs what is missing: $1 on Debian and Ubuntu, $2 on Fedora, $3 with Homebrew.
remedy() {
    if command -v apt-get >/dev/null; then echo "  sudo apt-get install $1"
    elif command -v dnf >/dev/null; then echo "  sudo dnf install $2"
    elif command -v brew >/dev/null; then echo "  brew install $3"
    else echo "  (apt-get install $1, dnf install $2 or brew install $3)"
    fi
}

is_optimized() {
    "$1" -c 'import ensurepip, sys, sysconfig, venv
sys.exit(not (sys.executable.startswith("/usr/bin/") or "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or "")))' 2>/dev/null
}

identity() {
    "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2], sys.base_prefix)' 2>/dev/null
}

candidates=${PYTHON:-python3 python3.13 python3.12 python3.11}
of_system=
if [ -z "${PYTHON:-}" ] && [ "$(uname)" = Linux ]; then of_system=/usr/bin/python3; fi
python=
for candidate in $candidates $of_system; do
    if fits "$candidate" && is_optimized "$candidate"; then python=$candidate; break; fi
done
for candidate in $candidates; do
    if [ -z "$python" ] && fits "$candidate"; then python=$candidate; fi
done
if [ -z "$python" ]; then
    found=$(for candidate in ${PYTHON:-python3}; do "$candidate" --version 2>&1 || true; done)
    echo "error: this needs Python 3.11, 3.12 or 3.13; found: ${found:-none}" >&2
    echo "Install one, then run make again (PYTHON=/path/to/python3.12 names one elsewhere):" >&2
    remedy "python3.12 python3.12-venv" python3.12 python@3.12 >&2
    exit 1
fi
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
if ! "$python" -c 'import venv, ensurepip' 2>/dev/null; then
    echo "error: $python ($version) has no venv module" >&2
    echo "Install it, then run make again:" >&2
    remedy "python$version-venv" "python$version" "python@$version" >&2
    exit 1
fi

echo "Making $directory with Python $version ($(command -v "$python")) from $lock"
# An environment whose interpreter is gone or is another one is made again.
if [ "$(identity "$directory/bin/python")" != "$(identity "$python")" ]; then
    "$python" -m venv --clear "$directory"
fi
"$directory/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$here/uv.txt"
# uv reads no pip configuration: a mirror or a certificate set for pip holds for it too.
pip_setting() { "$directory/bin/python" -m pip config get "$1" 2>/dev/null || true; }
index=${PIP_INDEX_URL:-$(pip_setting global.index-url)}
if [ -n "$index" ]; then UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX:-$index}; export UV_DEFAULT_INDEX; fi
cert=${PIP_CERT:-$(pip_setting global.cert)}
if [ -n "$cert" ]; then SSL_CERT_FILE=${SSL_CERT_FILE:-$cert}; export SSL_CERT_FILE; fi
uv() { "$directory/bin/python" -m uv "$@"; }
# Compiled now: the first run would otherwise compile TensorFlow in every task at once, which takes longer than training.
uv pip sync --quiet --compile-bytecode --python "$directory/bin/python" --require-hashes "$here/uv.txt" "$lock"
if [ "${3:-}" = project ]; then
    # Keras 2, which wants the package tensorflow where the lock has tensorflow-cpu: so without what it depends on.
    uv pip install --quiet --compile-bytecode --python "$directory/bin/python" --no-deps --require-hashes -r "$here/keras2.txt"
    # The build back-end comes from the lock; nothing is resolved or downloaded here.
    uv pip install --quiet --python "$directory/bin/python" --no-deps --no-build-isolation --editable "$here/.."
fi
