#!/bin/sh
# Runs inside the build: creates /opt/venv from a lock file, slimmed and compiled, ready for /opt/trainer.
# Usage: install.sh LOCK
# Build secrets, both optional: /run/secrets/pip.conf is pip's configuration (an index of your own, its password, a proxy);
# /run/secrets/ca.pem holds certificates to trust besides the usual ones. Neither is left in the image.
set -eu

lock=$1
venv=/opt/venv
export PIP_CACHE_DIR=/cache PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore PIP_PROGRESS_BAR=off

if [ -s /run/secrets/pip.conf ]; then export PIP_CONFIG_FILE=/run/secrets/pip.conf; fi
if [ -s /run/secrets/ca.pem ]; then
    # The certificates that pip would trust otherwise, then those of the secret: those that the base image sets, else the system's, else
    # pip's own. With only the secret's, pip would not trust an index that is not behind the company's proxy.
    usual=
    for file in "${PIP_CERT:-}" "${SSL_CERT_FILE:-}" "$(python -c 'import ssl; print(ssl.get_default_verify_paths().cafile or "")')" \
        /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/cert.pem \
        "$(python -c 'from pip._vendor import certifi; print(certifi.where())' 2>/dev/null)"; do
        if [ -s "$file" ]; then usual=$file && break; fi
    done
    { [ -z "$usual" ] || cat "$usual"; echo; cat /run/secrets/ca.pem; } >/tmp/ca.pem
    export PIP_CERT=/tmp/ca.pem
fi

# Without pip, which is only needed in the build: the base image's pip installs into this environment.
python -m venv --without-pip "$venv"
python -m pip --python "$venv/bin/python" install --no-compile --require-hashes -r "$lock"

# The trainer is outside the environment, so that a change of its source changes no other layer.
packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
echo /opt/trainer >"$packages/trainer.pth"
printf '#!%s -P\nimport sys\n\nfrom trainer.__main__ import main\n\nsys.exit(main())\n' "$venv/bin/python" >"$venv/bin/trainer"
chmod 755 "$venv/bin/trainer"

python "$(dirname "$0")/slim.py" "$packages"
"$venv/bin/python" -m compileall -q -j 0 "$packages"
rm -f /tmp/ca.pem
