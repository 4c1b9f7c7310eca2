#!/bin/sh
# Everything about a GPU in one command, on a machine with an NVIDIA GPU and its driver:
#   benchmarks/gpu.sh [options of benchmarks/gpu.py]
# makes an environment from requirements/gpu.txt in .gpu-venv, runs the mnist and cifar10 examples on the GPU, checks that they
# are placed there, that memory grows and that mixed precision trains, measures them against loops written by hand, and
# puts the tables into docs/performance.md and all of it into gpu.json.
set -eu
cd "$(dirname "$0")/.."
if ! nvidia-smi -L >/dev/null 2>&1; then
    echo "error: nvidia-smi shows no NVIDIA GPU here; install the driver, or run this on a machine that has one" >&2
    exit 1
fi
sh requirements/environment.sh .gpu-venv requirements/gpu.txt
PYTHONPATH=$PWD
export PYTHONPATH
exec .gpu-venv/bin/python -m benchmarks.gpu --output gpu.json --write docs/performance.md "$@"
