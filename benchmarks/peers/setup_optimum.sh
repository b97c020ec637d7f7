#!/bin/sh
# Makes .venv-optimum, in which tests/test_image_export.py loads an exported folder by optimum, unmodified; a second call
# finds it ready. It is apart from .venv-peers: optimum-onnx needs transformers 4, the other peers go on to 5.
# On a machine without a GPU, a pip that is set up to find PyTorch's builds for CPUs saves 2 GB of CUDA libraries.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
ready=.venv-optimum/.ready-optimum-onnx-0.1.0
if [ -e "$ready" ]; then
    exit 0
fi
sh .ci/make_venv.sh "$python" .venv-optimum
.venv-optimum/bin/pip install --quiet --disable-pip-version-check \
    'torch==2.13.0' 'optimum-onnx[onnxruntime]==0.1.0' 'transformers==4.57.6' 'Pillow>=10'
touch "$ready"
