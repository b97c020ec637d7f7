"""Going on with a text: a prompt of any length read at once, and then one token after another."""

import tensorflow as tf

from keras_attention.generation.arguments import whole_number
from keras_attention.generation.decoding_state import decoding_state
from keras_attention.generation.greedy_search import greedy
from keras_attention.text.special_ids import PAD_ID


def continue_greedily(model, prompt, *, max_new_tokens, end_id=-1, forbidden=(PAD_ID,), fixed_size=False):
    """The most probable continuation of each row of a prompt.

    Args:
        model: decodes without an encoder, such as `keras_attention.models.DecoderLM`: has `init_state(batch_size,
            max_length=)`, `prefill` and `step`, and `max_length`: what a rolling cache keeps, None where there is none.
        prompt: integer [B, T] with at least one real token a row; padding, 0, may stand on either side.
        max_new_tokens: the most tokens to generate, an int.
        end_id: the token that ends a row; -1 for none.
        forbidden: ids that are never generated; that of padding by default.
        fixed_size: decode in a state of the size that prompt and answer need, as XLA wants it, rather than in one that
            grows; a rolling cache then keeps everything.

    Returns:
        `GenerationResult`; `tokens` [B, N] are the new ones alone.

    Raises:
        ValueError: a prompt that is not [B, T], or a row without a token.

    Example:
        >>> ids = ByteTokenizer().encode_batch(["Once upon"])
        >>> continue_greedily(model, ids, max_new_tokens=20).tokens.shape
        TensorShape([1, 20])
    """
    prompt = tf.convert_to_tensor(prompt)
    if prompt.shape.rank != 2 or not prompt.dtype.is_integer:
        raise ValueError(
            f"prompt must be integer ids of shape [B, T]. Got shape {tuple(prompt.shape)}, dtype {prompt.dtype.name}."
        )
    max_new_tokens = whole_number("max_new_tokens", max_new_tokens, least=0)
    prompt = tf.cast(prompt, tf.int32)
    real = tf.not_equal(prompt, PAD_ID)
    if tf.executing_eagerly() and not bool(tf.reduce_all(tf.reduce_any(real, axis=1))):
        raise ValueError("Every row of prompt needs a token to start from, such as the begin of a text.")
    batch, length = tf.unstack(tf.shape(prompt))
    # The last real token starts the search, which reads it as its first step; padding is skipped.
    last = tf.argmax(tf.where(real, tf.range(length), -1), axis=1, output_type=tf.int32)
    is_last = tf.range(length) == last[:, None]
    start = tf.reduce_sum(tf.where(is_last, prompt, 0), axis=1)
    if fixed_size:
        state = model.init_state(batch, max_length=prompt.shape[1] + max_new_tokens)
    else:
        state = decoding_state(model, batch, model.max_length)
    _, state = model.prefill(tf.where(is_last, PAD_ID, prompt), state)
    return greedy(
        model.step,
        state,
        start,
        end_id=end_id,
        pad_id=PAD_ID,
        max_new_tokens=max_new_tokens,
        forbidden=forbidden,
    )
