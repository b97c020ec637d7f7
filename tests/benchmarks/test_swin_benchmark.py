"""The arithmetic of benchmarks/swin.py, which needs no measurement."""

import re

import pytest

from benchmarks import claims, swin

pytestmark = pytest.mark.benchmarks


@pytest.mark.parametrize("name,published", [("Swin-T", 4.5e9), ("ViT-S/16", 4.6e9)])
def test_operations_are_those_that_the_papers_count(name, published):
    """Liu et al. 2021 and Touvron et al. 2021 count multiply-adds at 224 x 224."""
    assert swin.operations(name, 224) == pytest.approx(2 * published, rel=0.02)


def test_windows_are_linear_and_global_attention_is_not():
    assert swin.operations("windows", 448) == 4 * swin.operations("windows", 224)
    assert swin.operations("global", 448) > 8 * swin.operations("global", 224)
    # 60 pixels are 15 tokens: windows of 7 are padded to 21.
    assert swin.operations("windows", 60) > 1.3 * (15 / 14) ** 2 * swin.operations("windows", 56)


def test_the_claim_says_what_was_measured(tmp_path, monkeypatch):
    table = tmp_path / "CLAIMS.md"
    table.write_text("| claim | the document | ours | command | word |\n|---|---|---|---|---|\n")
    figures = [
        {"pixels": p, "what": what, "work": 0.8, "time": time, "memory": -0.25}
        for p, what, time in ((224, "first blocks", 0.6), (448, "first blocks", 0.75), (448, "whole model", 0.1))
    ]
    save = claims.save_claim
    monkeypatch.setattr(claims, "save_claim", lambda *cells: save(*cells, path=table))
    swin.save_claim(figures, "python -m benchmarks.swin")
    row = table.read_text().splitlines()[-1]
    assert "448 px, first blocks: work -80 %, time -75 %, memory +25 %" in row
    assert re.search(r"global attention 70 % of the time is saved at 448 px, as a whole model .* at no size\.", row)
