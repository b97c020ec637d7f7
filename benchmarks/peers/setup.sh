#!/bin/sh
# Makes .venv-peers, the environment of the peers that benchmarks compare with; a second call finds it ready.
# It is apart from .venv so that no version of theirs decides one of ours. TensorFlow and Keras are those of setup.cfg.
# On a machine without a GPU, a pip that is set up to find PyTorch's builds for CPUs saves 2 GB of CUDA libraries.
set -eu
cd "$(dirname "$0")/../.."
python=${PYTHON:-$(command -v python3.11 || command -v python3)}
ready=.venv-peers/.ready-torch-2.13.0-tensorflow-2.21-transformers-4.57.6
if [ -e "$ready" ]; then
    exit 0
fi
sh .ci/make_venv.sh "$python" .venv-peers
.venv-peers/bin/pip install --quiet --disable-pip-version-check \
    'torch==2.13.0' 'transformers==4.57.6' 'keras-hub>=0.26,<1' 'tensorflow>=2.21,<2.22' 'tensorflow-text>=2.21,<2.22' 'keras>=3.15,<3.16'
touch "$ready"
