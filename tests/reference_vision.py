"""The models of images once more: float64 NumPy, patch by patch and pixel by pixel, from a model's weights."""

import math

import numpy as np
import reference

NO_LIMITS = reference.Limits()


def array(weight):
    return np.asarray(weight, np.float64)


def dense(x, layer):
    y = x @ array(layer.kernel)
    return y if layer.bias is None else y + array(layer.bias)


def layer_norm(x, layer):
    x = x - x.mean(-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(-1, keepdims=True) + layer.epsilon)
    return x * array(layer.gamma) + array(layer.beta)


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def cubic(distance, a=-0.75):
    d = abs(distance)
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * d**3 - 5 * a * d**2 + 8 * a * d - 4 * a if d < 2 else 0.0


def resize(table, height, width):
    """Bicubic, pixel by pixel: every output from its 4 x 4 neighbours, borders repeated."""
    rows, columns, _ = table.shape
    out = np.zeros((height, width, table.shape[-1]))
    for i in range(height):
        for j in range(width):
            y, x = (i + 0.5) * rows / height - 0.5, (j + 0.5) * columns / width - 0.5
            for r in range(math.floor(y) - 1, math.floor(y) + 3):
                for c in range(math.floor(x) - 1, math.floor(x) + 3):
                    weight = cubic(y - r) * cubic(x - c)
                    out[i, j] += weight * table[min(max(r, 0), rows - 1), min(max(c, 0), columns - 1)]
    return out


def patches(images, layer):
    """[B, H, W, C] -> [B, rows, columns, E], each patch flattened and multiplied; missing pixels are zeros."""
    (p, q), kernel, bias = layer.patch_size, array(layer.projection.kernel), array(layer.projection.bias)
    batch, height, width, channels = images.shape
    rows, columns = math.ceil(height / p), math.ceil(width / q)
    out = np.zeros((batch, rows, columns, kernel.shape[-1]))
    for b in range(batch):
        for i in range(rows):
            for j in range(columns):
                patch = np.zeros((p, q, channels))
                part = images[b, i * p : (i + 1) * p, j * q : (j + 1) * q]
                patch[: part.shape[0], : part.shape[1]] = part
                out[b, i, j] = patch.reshape(-1) @ kernel.reshape(-1, kernel.shape[-1]) + bias
    return out


def block(x, layer, *, bias=None, attend=reference.softmax, limits=NO_LIMITS):
    """A pre-norm encoder block, with its factors per feature where it has them."""
    h = layer_norm(x, layer.attention_residual.normalization)
    h = reference.multi_head_attention(layer.attention, h, bias=bias, attend=attend, limits=limits)
    x = x + scaled(h, layer.attention_residual)
    h = layer_norm(x, layer.feed_forward_residual.normalization)
    h = dense(gelu(dense(h, layer.feed_forward.inner)), layer.feed_forward.outer)
    return x + scaled(h, layer.feed_forward_residual)


def scaled(h, residual):
    return h if residual.scaling is None else h * array(residual.scaling.scale)


def vit(model, images, attend=reference.softmax):
    """(hidden states, final tokens, output) of a ViT."""
    x = patches(images, model.patch_embedding)
    batch, rows, columns, width = x.shape
    x = x.reshape(batch, rows * columns, width)
    table = array(model.positions.position_emb)
    prefix = model.num_prefix_tokens
    grid = resize(table[prefix:].reshape(*model.grid, width), rows, columns).reshape(-1, width)
    x = x + grid
    if prefix:
        token = array(model.class_token)[0] + table[:1]
        x = np.concatenate([np.broadcast_to(token, (batch, 1, width)), x], axis=1)
    states = [x]
    for layer in model.blocks:
        states.append(block(states[-1], layer, attend=attend))
    tokens = layer_norm(states[-1], model.final_norm)
    mean = tokens[:, prefix:].mean(1)
    pooled = {
        "token": lambda: tokens[:, 0],
        "mean": lambda: mean,
        "token_mean": lambda: np.concatenate([tokens[:, 0], mean], -1),
    }[model.pooling]()
    return states, tokens, pooled if model.head is None else dense(pooled, model.head)
