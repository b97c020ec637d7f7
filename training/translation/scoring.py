"""How good translations are: BLEU, chrF and the share that is exactly right."""

import importlib
import re

# Han, kana and Hangul: scripts that BLEU's usual tokenizer does not cut into words.
_UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af]")


def has_bleu():
    """Whether sacrebleu, of the extra [translation], can be imported."""
    try:
        importlib.import_module("sacrebleu")
    except ImportError:
        return False
    return True


def bleu_tokenizer(references):
    """The sacrebleu tokenizer that fits these texts: "zh" for Han, "char" for kana and Hangul, otherwise "13a".

    sacrebleu's own tokenizers for Japanese and Korean need packages of their own; characters are comparable and need
    none.
    """
    letters = [letter for text in references[:1000] for letter in _UNSPACED.findall(text)]
    if len(letters) < sum(len(text) for text in references[:1000]) / 5:
        return "13a"
    han = sum("\u3400" <= letter <= "\u9fff" or letter >= "\uf900" for letter in letters if letter < "\uac00")
    return "zh" if han >= 0.9 * len(letters) else "char"


def score(translations, references, kinds=None, tokenize="auto"):
    """Score translations against one reference each.

    Args:
        translations: list of N strings.
        references: list of N strings.
        kinds: None, or N names; then the share of exact matches is also given for each kind.
        tokenize: a tokenizer of sacrebleu's BLEU ("13a", "zh", "char", "intl", "none", ...), or "auto".

    Returns:
        dict: "bleu" and "chrf" from 0 to 100 (corpus level, sacrebleu's defaults), "exact_match" and
        "exact_match/<kind>" from 0 to 1. Empty for no translations; without "bleu" and "chrf" where `has_bleu` says no.

    Raises:
        ValueError: lists of different lengths.

    Reference:
        Papineni et al., 2002, https://aclanthology.org/P02-1040; Popovic, 2015, https://aclanthology.org/W15-3049;
        Post, 2018, https://arxiv.org/abs/1804.08771.
    """
    if len(translations) != len(references) or (kinds is not None and len(kinds) != len(references)):
        raise ValueError(
            "score needs one reference and one kind for each translation. Got "
            f"{len(translations)} translations, {len(references)} references"
            + ("." if kinds is None else f", {len(kinds)} kinds.")
        )
    if not references:
        return {}
    right = [a.strip() == b.strip() for a, b in zip(translations, references)]
    scores = {}
    if has_bleu():
        import sacrebleu

        if tokenize == "auto":
            tokenize = bleu_tokenizer(references)
        scores["bleu"] = sacrebleu.corpus_bleu(translations, [references], tokenize=tokenize).score
        scores["chrf"] = sacrebleu.corpus_chrf(translations, [references]).score
    scores["exact_match"] = sum(right) / len(right)
    for kind in sorted(set(kinds or [])):
        of_kind = [good for good, k in zip(right, kinds) if k == kind]
        scores[f"exact_match/{kind}"] = sum(of_kind) / len(of_kind)
    return scores
