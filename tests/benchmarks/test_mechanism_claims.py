"""The documents' figures for efficient attention: what is said of measured rows, and the rows of CLAIMS.md."""

import pytest

pytest.importorskip("benchmarks", reason="benchmarks are not part of the wheel")
from benchmarks import demo_mechanisms, mechanism_claims
from benchmarks.claims import CLAIMS, save_claim
from benchmarks.text_case import text_case

pytestmark = pytest.mark.benchmarks


def rows(*of):
    return [{"T": length, "own": own, "dense": dense, "machine": None} for length, own, dense in of]


def test_ratios_and_from_where_on_they_hold():
    times = rows((512, 1.0, 1.5), (1024, 1.0, 2.0), (2048, 1.0, 5.0), (4096, 1.0, None))
    assert mechanism_claims.ratios(times, 2.0) == (
        "1.5x at T = 512, 2.0x at T = 1024, 5.0x at T = 2048",
        "Holds from T = 1024 on, not below.",
    )
    assert mechanism_claims.ratios(times, 6.0)[1] == "Does not hold up to T = 2048."
    assert mechanism_claims.ratios(times, 1.0)[1] == "Holds at every length measured."
    memory = rows((512, 5.0, 4.0), (1024, 3.0, 5.0), (2048, 2.0, 3.0))
    assert mechanism_claims.ratios(memory, 1 / 0.6, saved=True) == (
        "+25% at T = 512, -40% at T = 1024, -33% at T = 2048",
        "Does not hold up to T = 2048.",  # once, but not from there on
    )


def test_growth_in_words():
    linear = rows((4, 4.0, 16.0), (8, 8.0, 64.0), (16, 16.0, 256.0), (32, 32.0, None))
    assert mechanism_claims.linear_growth(linear) == (
        "time grows with T^1.00 up to T = 32, dense softmax with T^2.00 up to 16",
        "Holds.",
    )
    steep = rows((4, 4.0, 16.0), (8, 12.0, 64.0), (16, 36.0, 256.0))
    assert mechanism_claims.linear_growth(steep)[1].startswith("Does not hold: the exponent is above")


def test_a_longer_process_in_words():
    found = rows((512, 1e9, 1.1e9), (4096, 1.05e9, 2.2e9), (10_000, 1.1e9, None))
    assert mechanism_claims.longer_process(found) == (
        "1.00 GB at T = 512, 1.10 GB at 10000 (+10%); dense softmax 1.10 GB at 512, 2.20 GB at 4096 (+100%)",
        "Holds.",
    )
    found[-1]["own"] = 1.2e9
    assert mechanism_claims.longer_process(found)[1] == "Does not hold in this reading."


def test_a_claim_replaces_its_row_or_comes_last(tmp_path):
    path = tmp_path / "CLAIMS.md"
    path.write_text("# Claims\n\n| claim | the document | ours | command | word |\n|---|---|---|---|---|\n")
    with_text = path.read_text() + "| old | 1 | 2 | `x` | y |\n"
    path.write_text(with_text + "\nThe end.\n")
    save_claim("new | one", "+1 %", "+2\n%", "python -m it", "Holds.", path)
    save_claim("old", "1", "3", "x", "No.", path)
    assert path.read_text().splitlines()[4:] == [
        "| old | 1 | 3 | `x` | No. |",
        "| new \\| one | +1 % | +2 % | `python -m it` | Holds. |",
        "",
        "The end.",
    ]
    path.write_text("# Nothing\n")
    with pytest.raises(ValueError, match="has no table to put the claim 'old' into"):
        save_claim("old", "1", "3", "x", "No.", path)


@pytest.mark.parametrize(
    ("training", "causal", "shape"), [(False, False, (1, 2)), (False, True, (1, 6, 11)), (True, True, ())]
)
def test_a_text_model_gives_logits_or_a_loss_with_gradients(training, causal, shape):
    sizes = {"layers": 1, "width": 8, "heads": 2, "mlp_dim": 12, "vocab_size": 11}
    found = text_case("local:radius=2", 6, training, causal, traced=True, **sizes)()
    if training:
        assert found[0].shape == shape and found[0] > 0
        # embedding, 4 projections, 2 feed-forward layers, the output and 3 norms
        assert len(found) == 1 + 1 + 4 * 2 + 2 * 2 + 2 + 3 * 2
        # A key's bias adds the same to all scores of a query: the only gradient that is 0.
        assert sum(float(abs(gradient.numpy()).max()) > 1e-6 for gradient in found[1:]) == len(found) - 2
    else:
        assert found.shape == shape


def test_all_claims_are_measured_and_written(tmp_path, monkeypatch, capsys):
    """`measured` is a stand-in; the rows go to a copy of CLAIMS.md."""
    copy, asked = tmp_path / "CLAIMS.md", []
    before = CLAIMS.read_text(encoding="utf-8")
    copy.write_text(before, encoding="utf-8")

    def measured(claim, length, rounds, forks):
        asked.append((claim.name, length))
        dense = float(length) ** 2 * 1e3 if length in claim.dense_lengths else None
        return {"T": length, "own": length * 1e6, "dense": dense, "machine": 1e11}

    monkeypatch.setattr(mechanism_claims, "measured", measured)
    monkeypatch.setattr(mechanism_claims, "save_claim", lambda *cells: save_claim(*cells, path=copy))
    monkeypatch.setattr(mechanism_claims.Report, "save", lambda report: None)
    quality = {claim.run: (0.9, 70) for claim in mechanism_claims.CLAIMS} | {"softmax": (0.95, 70)}
    monkeypatch.setattr(mechanism_claims, "exact_matches", lambda folder: quality)
    cells = str(tmp_path / "cells.json")
    assert mechanism_claims.main(["--cells", cells, "--save"]) == 0
    assert len(asked) == sum(len(claim.lengths) for claim in mechanism_claims.CLAIMS)
    after = copy.read_text(encoding="utf-8")
    for claim in mechanism_claims.CLAIMS:
        assert claim.run in demo_mechanisms.RUNS
        (row,) = [line for line in after.splitlines() if line.startswith(f"| {claim.name} |")]
        assert row.count(" | ") == 4 and f"| `python -m benchmarks.mechanism_claims --cells {cells}` |" in row
        text = demo_mechanisms.RUNS[claim.run]["mechanism"]
        assert f"90.0% with `{text}` after 70 steps, 95.0% with softmax after 70 (-5.0 points)" in row
    ours = tuple(f"| {claim.name} |" for claim in mechanism_claims.CLAIMS)
    others = [line for line in before.splitlines() if not line.startswith(ours)]
    assert [line for line in after.splitlines() if not line.startswith(ours)] == others
    assert "Holds from T = 2048 on, not below." in capsys.readouterr().out
    # Again with --resume: nothing is measured twice, but what was trained since is read.
    asked.clear()
    del quality["bigbird"]
    assert mechanism_claims.main(["--cells", cells, "--resume", "--only", "BigBird"]) == 0 and not asked
    said = capsys.readouterr().out
    assert "no change in quality without the runs of bigbird" in said and "change in quality not measured" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "magic"], "--only 'magic' is in the name of none: block-sparse"),
        (["--longest", "600"], "--longest must be at least 2048"),
        (["--save", "--only", "BigBird"], "--save writes all claims"),
        (["--rounds", "0"], "--rounds must be at least 1"),
    ],
)
def test_bad_arguments_are_one_line(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as ended:
        mechanism_claims.main(["--cells", str(tmp_path / "cells.json"), *arguments])
    assert ended.value.code == 2 and message in capsys.readouterr().err.splitlines()[-1]
