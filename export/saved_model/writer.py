"""SavedModels for TensorFlow Serving and whatever else loads them, with nothing of this package inside."""

import tensorflow as tf

from keras_attention.errors import UsageError, reason_of
from keras_attention.export import folders
from keras_attention.export.kinds.choice import plan_for
from keras_attention.export.plan import Given
from keras_attention.export.precision import check_finite
from keras_attention.export.quiet import quiet
from keras_attention.export.report import ExportReport, write_description
from keras_attention.export.saved_model import graph_scan


def export_saved_model(
    model,
    path,
    *,
    tokenizer=None,
    beams=None,
    length_penalty=None,
    max_length=None,
    input_signature=None,
    samples=None,
    images=None,
):
    """Writes a SavedModel that translates, with every step on the way as a signature of its own.

    It is written beside `path`, loaded, compared with Keras at three lengths and two batch sizes, and only then moved
    to `path`/<version>/, where a server may be watching: to 1, or to the number after the highest one there. A process
    that loads it needs neither this package nor Keras; the text signatures need `import tensorflow_text`.

    Signatures of an encoder-decoder such as `keras_attention.models.Transformer` (all batch first):

    - `translate`, with a tokenizer: text string [B] -> text string [B].
    - `generate`: input_ids int32 [B, S], input_lengths int32 [B], max_new_tokens int32 [B] (0 = the usual limit) ->
      output_ids int32 [B, N], output_lengths [B], scores float32 [B], overflow int32 [B].
    - `encode`: input_ids, input_lengths -> memory float32 [B, S, E], mask int32 [B, S].
    - `prefill`: input_ids, input_lengths, target_ids int32 [B, T], target_lengths -> logits float32 [B, T, V] and the
      state, each tensor under its name ("layers.0.self.key"); fixed sizes, with `lengths` and `overflow` [B].
    - `decode_step`: token int32 [B] and the state -> logits float32 [B, V] and the state.
    - `serving_default`: `translate`, or `generate` without a tokenizer.

    Ids after the first `lengths` of a row are never read, whatever a server padded them with. Logits of a row that ran
    past the end of its state are NaN and its `overflow` is 1; other rows are not touched.

    Signatures of a classifier of images, which is any `keras.Model` given with `images`; scaling, resizing and the
    change between grey and colour are in the graph:

    - `classify` (= `serving_default`): images uint8 [B, h, w, 1 to 4] of one size -> labels string [B], label_ids int32
      [B], probabilities float32 [B, N].
    - `classify_bytes`: image_bytes string [B], each a JPEG, PNG, BMP or GIF file (its first frame) -> the same. One
      that cannot be decoded fails its batch. The pixels are those of `read_image`, but the EXIF orientation is not
      applied, and what is transparent in a GIF is not white.

    Signatures of a `keras_attention.models.CLIP`, whose vectors have length one:

    - `encode_image` (= `serving_default`): images uint8 [B, h, w, 1 to 4] of one size with `images`, and otherwise
      normalized float32 [B, H, W, C] -> image_embeds float32 [B, P].
    - `encode_text`, with a tokenizer: text string [B] -> text_embeds float32 [B, P]; longer texts lose their end.
    - `encode_ids`: input_ids int32 [B, T], input_lengths int32 [B] -> text_embeds.
    - `similarities`: image_embeds [B, P], text_embeds [N, P] -> logits_per_image float32 [B, N].

    Any other `keras.Model` gets `serving_default` from its call, with its own names; if it offers

        init_state(batch_size, max_length=N) -> state          a nested structure of batch-first tensors
        prefill(tokens [B, T], state) -> (logits [B, T, V], state)    id 0 is padding
        step(tokens [B], state) -> (logits [B, V], state)

    also `prefill` (input_ids, input_lengths) and `decode_step`.

    Args:
        model: a built `keras.Model`.
        path: folder of the versions; new, or written by an earlier export.
        tokenizer: `keras_attention.text.SentencePieceTokenizer`, or what has `tokenize` and `detokenize` like it. Of a
            language model on bytes its `ByteTokenizer`, noted in export.json for `TextGenerator`.
        beams: width of the beam search of `translate` and `generate`; 1, greedy, by default.
        length_penalty: of the beam search, see `keras_attention.generation.beam_search`; 0.6 by default.
        max_length: size of decoding states and bound of answers; the model's own `max_length` by default.
        input_signature: for another model that is subclassed, nested `tf.TensorSpec` of its argument.
        samples: for another model, a list of its inputs to compare with; random ones by default.
        images: for CLIP, the `keras_attention.images.ImageInput` of its images; for a classifier of images, the
            `keras_attention.images.ImageTask` it was trained for.

    Returns:
        `ExportReport`.

    Raises:
        UsageError: what cannot be exported or written, an option that has no effect on this model, and a comparison
            that failed; nothing is left behind then.

    Example:
        >>> report = export_saved_model(model, "exports/en_de", tokenizer=tokenizer)
        >>> serve = tf.saved_model.load(report.path).signatures["translate"]
        >>> serve(text=tf.constant(["Good morning"]))["text"]
    """
    folders.check_versions(path)
    check_finite(model)
    given = Given(tokenizer, beams, length_penalty, max_length, input_signature, samples, images)
    plan = plan_for(model, given, onnx=False)
    endpoints = plan.endpoints()
    with folders.beside(path) as temporary:
        _write(temporary, endpoints, plan.resources())
        graph_scan.check(temporary)
        comparison = plan.compare_served(tf.saved_model.load(str(temporary)).signatures)
        _write_extra(temporary / "assets.extra", endpoints, comparison, plan)
        version = folders.move_as_version(temporary, path)
    return ExportReport(version, comparison.largest, comparison.differences, tuple(sorted(endpoints)))


def _write(folder, endpoints, resources):
    holder = tf.Module()
    # Only what the functions use: no optimizer's slots, no metrics.
    holder.weights = list({id(v): v for e in endpoints.values() for v in e.concrete.variables}.values())
    holder.resources = [
        part
        for root in resources
        if isinstance(root, tf.__internal__.tracking.Trackable)
        for part in tf.train.TrackableView(root).descendants()
        if isinstance(part, tf.saved_model.experimental.TrackableResource)
    ]
    try:
        with quiet("absl"):
            tf.saved_model.save(
                holder, str(folder), signatures={name: endpoint.concrete for name, endpoint in endpoints.items()}
            )
    except AssertionError as error:
        raise UsageError(
            f"The model uses a table or variable that is no attribute of it ({reason_of(error, 300)}). Make it an "
            "attribute of the model or of one of its layers."
        ) from error


def _write_extra(folder, endpoints, comparison, plan):
    """Writes assets.extra, into which servers do not look."""
    folder.mkdir()
    imports = {module for endpoint in endpoints.values() for module in endpoint.imports}
    write_description(
        folder / "export.json",
        "saved_model",
        plan.described(),
        comparison,
        tensorflow=tf.__version__,
        note="A process must import the modules under 'imports' before it loads the model, for all signatures.",
        imports=sorted(imports),
        signatures={name: endpoint.described() for name, endpoint in endpoints.items()},
    )
    plan.write_extra_assets(folder)
