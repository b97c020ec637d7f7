"""How well images find their texts, texts their images, and logits their class."""

import numpy as np


def places(scores, own):
    """The place, from 1, that the right one of each row has among all.

    Among equal scores the right one comes last: a model that says nothing is not right. NaN is never at least as large,
    and would make a diverged model right everywhere: a row that is not finite has no place (infinity).

    Args:
        scores: [N, M]. own: [N], the score of the right one of each row.

    Returns:
        float64 [N].
    """
    found = (scores >= own[:, None]).sum(axis=1)
    return np.where(np.isfinite(scores).all(axis=1), found, np.inf)


def recalls(similarities, ks=(1, 5)):
    """Shares of images and of texts whose counterpart is among the first k of the other side.

    Args:
        similarities: [N, N], of image i with text j; i belongs to i.
        ks: the numbers k.

    Returns:
        dict: "image_to_text_recall@1", ..., "text_to_image_recall@1", ..., and "reciprocal_rank", the mean of one over
        the place of the counterpart in both directions; see `places`.
    """
    similarities = np.asarray(similarities, np.float64)
    found, ranks = {}, []
    for name, table in (("image_to_text", similarities), ("text_to_image", similarities.T)):
        reached = places(table, np.diag(similarities))
        found |= {f"{name}_recall@{k}": float(np.mean(reached <= k)) for k in ks}
        ranks.append(np.mean(1.0 / reached))
    return found | {"reciprocal_rank": float(np.mean(ranks))}


def zero_shot_accuracy(image_vectors, class_vectors, labels):
    """The share of images whose nearest class text is that of their own class.

    Args:
        image_vectors: [N, P]; class_vectors: [C, P], unit vectors.
        labels: int [N].
    """
    nearest = np.argmax(np.asarray(image_vectors) @ np.asarray(class_vectors).T, axis=1)
    return float(np.mean(nearest == np.asarray(labels)))
