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


def convolution(x, kernel, stride):
    """3 x 3, place by place; where the padding of a stride is uneven, TensorFlow has the larger part below, right."""
    batch, height, width, _ = x.shape
    rows, columns = math.ceil(height / stride), math.ceil(width / stride)
    before = [max((n - 1) * stride + 3 - size, 0) // 2 for n, size in ((rows, height), (columns, width))]
    out = np.zeros((batch, rows, columns, kernel.shape[-1]))
    for i, j, di, dj in np.ndindex(rows, columns, 3, 3):
        y, z = i * stride + di - before[0], j * stride + dj - before[1]
        if 0 <= y < height and 0 <= z < width:
            out[:, i, j] += x[:, y, z] @ kernel[di, dj]
    return out


def offset_bias(layer, grid):
    """[H, P + n, P + n] of a relative bias by offset, pair by pair; at another grid linearly between the offsets."""
    (h, w), (rows, columns), before = layer.window, grid, layer.num_prefix_tokens
    table = array(layer.table).reshape(2 * h - 1, 2 * w - 1, -1)
    n = rows * columns
    bias = np.zeros((layer.num_heads, before + n, before + n))
    if before:
        to_prefix, from_prefix, inside = array(layer.prefix_table)
        bias[:, before:, :before], bias[:, :before, before:] = to_prefix[:, None, None], from_prefix[:, None, None]
        bias[:, :before, :before] = inside[:, None, None]
    for q, k in np.ndindex(n, n):
        # Offset 0 is in the middle of both tables, the ends of the new one are those of the old one.
        y = (k // columns - q // columns) * ((h - 1) / (rows - 1) if rows > 1 else 0) + h - 1
        x = (k % columns - q % columns) * ((w - 1) / (columns - 1) if columns > 1 else 0) + w - 1
        value = 0
        for r in range(2 * h - 1):
            for c in range(2 * w - 1):
                value = value + max(0, 1 - abs(y - r)) * max(0, 1 - abs(x - c)) * table[r, c]
        bias[:, before + q, before + k] = value
    return bias


def hybrid(model, images):
    """(hidden states, final tokens, output) of a HybridViT."""
    x = images
    for conv, norm in zip(model.stem.convolutions, model.stem.normalizations):
        x = gelu(layer_norm(convolution(x, array(conv.kernel), conv.strides[0]), norm))
    batch, *grid, width = x.shape
    x = x.reshape(batch, -1, width)
    prefix = model.num_prefix_tokens
    if prefix:
        x = np.concatenate([np.broadcast_to(array(model.class_token), (batch, 1, width)), x], axis=1)
    if model.positions is not None:
        table = array(model.positions.position_emb)
        patches = resize(table[prefix:].reshape(*model.grid, width), *grid).reshape(-1, width)
        x = x + np.concatenate([table[:prefix], patches])
    states = [x]
    for i, layer in enumerate(model.blocks):
        bias = offset_bias(model.relative_biases[i], grid)[None] if model.relative_biases else None
        states.append(block(states[-1], layer, bias=bias))
    tokens = layer_norm(states[-1], model.final_norm)
    pooled = tokens[:, 0] if prefix else tokens.mean(1)
    return states, tokens, pooled if model.head is None else dense(pooled, model.head)


def window_attention(h, layer):
    """Attention of h [B, H, W, C] in windows: for each place, those of its window that were its neighbours."""
    batch, height, width, features = h.shape
    w, shift = layer.window, 0 if min(h.shape[1:3]) <= layer.window else layer.shift
    rows, columns = math.ceil(height / w) * w, math.ceil(width / w) * w
    whole = np.zeros((batch, rows, columns, features))
    whole[:, :height, :width] = h
    table = array(layer.relative_bias.table).reshape(2 * w - 1, 2 * w - 1, -1)

    def window_of(place, size):
        """Window of a place on the rolled axis, and which side of the seam it stands on."""
        rolled = (place - shift) % size
        return rolled // w, place < shift

    out = np.zeros((batch, height, width, layer.d_model))
    for i in range(height):
        for j in range(width):
            mine = window_of(i, rows), window_of(j, columns)
            seen = [p for p in np.ndindex(rows, columns) if (window_of(p[0], rows), window_of(p[1], columns)) == mine]
            keys = np.stack([whole[:, y, x] for y, x in seen], axis=1)
            bias = np.stack([table[y - i + w - 1, x - j + w - 1] for y, x in seen], axis=-1)
            query = whole[:, i, j][:, None]
            out[:, i, j] = reference.multi_head_attention(layer.attention, keys, q=query, bias=bias[None, :, None])[
                :, 0
            ]
    return out


def swin(model, images):
    """(hidden states, final tokens, output) of a SwinTransformer."""
    states, first = [layer_norm(patches(images, model.patch_embedding), model.embedding_norm)], 0
    for stage, depth in enumerate(model.depths):
        x = states[-1]
        for layer in model.blocks[first : first + depth]:
            x = x + window_attention(layer_norm(x, layer.attention_residual.normalization), layer)
            h = layer_norm(x, layer.feed_forward_residual.normalization)
            x = x + dense(gelu(dense(h, layer.feed_forward.inner)), layer.feed_forward.outer)
        first += depth
        if stage < len(model.mergings):
            merging = model.mergings[stage]
            batch, rows, columns, width = x.shape
            even = np.zeros((batch, rows + rows % 2, columns + columns % 2, width))
            even[:, :rows, :columns] = x
            corners = [even[:, 0::2, 0::2], even[:, 1::2, 0::2], even[:, 0::2, 1::2], even[:, 1::2, 1::2]]
            x = layer_norm(np.concatenate(corners, -1), merging.normalization) @ array(merging.reduction.kernel)
        states.append(x)
    tokens = layer_norm(states[-1], model.final_norm)
    tokens = tokens.reshape(len(tokens), -1, tokens.shape[-1])
    pooled = tokens.mean(1)
    return states, tokens, pooled if model.head is None else dense(pooled, model.head)
