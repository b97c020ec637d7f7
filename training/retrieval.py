"""How well images find their texts, and texts their images."""

import numpy as np


def recalls(similarities, ks=(1, 5)):
    """Shares of images and of texts whose counterpart is among the first k of the other side.

    Args:
        similarities: [N, N], of image i with text j; i belongs to i.
        ks: the numbers k.

    Returns:
        dict: "image_to_text_recall@1", ..., "text_to_image_recall@1", ..., and "reciprocal_rank", the mean of one over
        the place of the counterpart in both directions. Among equal similarities the counterpart comes last: a model
        that says nothing finds nothing.
    """
    similarities = np.asarray(similarities, np.float64)
    found, ranks = {}, []
    for name, table in (("image_to_text", similarities), ("text_to_image", similarities.T)):
        places = (table >= np.diag(similarities)[:, None]).sum(axis=1)
        # NaN is never at least as large: without this a diverged model would find everything.
        places = np.where(np.isfinite(table).all(axis=1), places, len(table) + 1)
        found |= {f"{name}_recall@{k}": float(np.mean(places <= k)) for k in ks}
        ranks.append(np.mean(1.0 / places))
    return found | {"reciprocal_rank": float(np.mean(ranks))}


def zero_shot_accuracy(image_vectors, class_vectors, labels):
    """The share of images whose nearest class text is that of their own class.

    Args:
        image_vectors: [N, P]; class_vectors: [C, P], unit vectors.
        labels: int [N].
    """
    nearest = np.argmax(np.asarray(image_vectors) @ np.asarray(class_vectors).T, axis=1)
    return float(np.mean(nearest == np.asarray(labels)))
