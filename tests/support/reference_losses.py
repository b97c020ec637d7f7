"""Token losses as float64 loops, to compare the vectorised ones with."""

import math


def token_loss(label, logits, smoothing=0.0):
    """-sum(target * log softmax(logits)) of one token, with Python's own floats."""
    logits = [float(x) for x in logits]
    largest = max(logits)
    log_sum = largest + math.log(math.fsum(math.exp(x - largest) for x in logits))
    loss = 0.0
    for token, logit in enumerate(logits):
        target = smoothing / len(logits) + (1.0 - smoothing if token == label else 0.0)
        loss -= target * (logit - log_sum)
    return loss


def token_mean(labels, logits, smoothing=0.0, weights=None, ignore_id=0):
    """sum(weight * loss) / sum(weight) over the tokens that are not padding; 0 when there are none."""
    total = count = 0.0
    for row, (row_labels, row_logits) in enumerate(zip(labels, logits)):
        for column, (label, token_logits) in enumerate(zip(row_labels, row_logits)):
            if label == ignore_id:
                continue
            weight = 1.0 if weights is None else float(weights[row][column])
            total += weight * token_loss(label, token_logits, smoothing)
            count += weight
    return total / count if count else 0.0
