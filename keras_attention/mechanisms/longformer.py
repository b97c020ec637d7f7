"""A window of neighbours and global tokens with projections of their own."""

from keras_attention.mechanisms.base import register
from keras_attention.mechanisms.pattern import Pattern, supports
from keras_attention.ops.basics import checks
from keras_attention.ops.patterns import global_tokens


@register("longformer")
class LongformerAttention(Pattern):
    """Softmax attention to the neighbours within `radius` and to a few global tokens, which see and are seen by all.

    Choose it for long documents with a place where everything has to come together: a class token, a question. Global
    tokens see through query, key and value projections of their own (never grouped), as in the paper. Time and memory
    O(T (radius + num_global)).

    The first `num_global` real tokens of each row are global, or those that `global_mask` marks in the call: a layer's
    `mha(x, global_mask=marks)`, boolean [B, T], at most `num_global` a row. More are a ValueError in eager code and NaN
    in that row of a graph.

    Args:
        radius: farthest distance seen by the other tokens, on both sides (behind only with the causal flag).
        num_global: number of global tokens, or the most of them that a row may have.

    Reference: Beltagy et al., "Longformer: The Long-Document Transformer", 2020, https://arxiv.org/abs/2004.05150
    """

    supports = supports(
        global_mask=True,
        time="T*(radius+num_global)",
        memory="T*(radius+num_global)",
        paper="Beltagy et al. 2020, https://arxiv.org/abs/2004.05150",
    )

    def __init__(self, radius=256, num_global=1, **kwargs):
        super().__init__(**kwargs)
        self.radius = checks.nonnegative_int("radius", radius)
        self.num_global = checks.positive_int("num_global", num_global)

    def build_projections(self, owner, q_width, k_width, v_width):
        super().build_projections(owner, q_width, k_width, v_width)
        for name, width in (("query", q_width), ("key", k_width), ("value", v_width)):
            owner.add_projection(f"global_{name}", width, owner.num_heads)

    def project(self, owner, q, k, v, training=False):
        heads = owner.project_heads(q, k, v, training)
        own = {
            "q_global": owner.global_query_projection(q),
            "k_global": owner.global_key_projection(k),
            "v_global": owner.global_value_projection(v),
        }
        return *heads, {name: owner.split_heads(x, owner.num_heads) for name, x in own.items()}

    def rotated(self, q, k, projected, rotate):
        turned = {name: rotate(projected[name]) for name in ("q_global", "k_global")}
        return rotate(q), rotate(k), {**projected, **turned}

    def pattern(self, q, k, v, *, q_global, k_global, v_global, padding_mask, global_mask=None, **options):
        if global_mask is None:
            global_mask = global_tokens.first_tokens(self.num_global, padding_mask, checks.sizes(q)[2])
        return global_tokens.longformer(
            q,
            k,
            v,
            q_global,
            k_global,
            v_global,
            radius=self.radius,
            global_mask=global_mask,
            max_global=self.num_global,
            padding_mask=padding_mask,
            **options,
        )
