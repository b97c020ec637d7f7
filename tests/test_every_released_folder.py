"""Run folders and exports that earlier releases left load today, answer as they did, and go on as they did."""

import contextlib

import numpy as np
import pytest
import release_folders

import keras_attention

ARCHIVES = sorted(release_folders.FOLDER.glob("*/folders/archive.tar.xz"))
# Biases of keys change no answer, and Adam makes steps of their gradients' rounding: see releases/README.md.
LOOSE = "resumed.checkpoint."


def test_this_release_is_stored():
    stored = {path.parent.parent.name for path in ARCHIVES}
    assert keras_attention.__version__ in stored, "run `python tests/support/release_folders.py` and commit the folder"


@pytest.mark.slow
@pytest.mark.parametrize("kind", release_folders.KINDS)
@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: path.parent.parent.name)
def test_a_released_folder_answers_and_goes_on_as_it_did(archive, kind, tmp_path):
    release_folders.unpack(archive, kind, tmp_path)
    given, wanted = release_folders.read_numbers(archive.with_name(f"{kind}.npz"))
    with contextlib.chdir(tmp_path):
        got = release_folders.KINDS[kind].answers(given)
        got |= release_folders.KINDS[kind].resumed(given)
    assert got.keys() == wanted.keys()
    for name, want in wanted.items():
        if want.dtype.kind == "f":
            tolerance = 2e-3 if name.startswith(LOOSE) else 1e-5
            np.testing.assert_allclose(got[name], want, rtol=tolerance, atol=tolerance, err_msg=name)
        else:
            np.testing.assert_array_equal(got[name], want, err_msg=name)
