"""The files beside the graphs, by which `optimum` and `transformers` know what they have loaded."""

import json

import keras

from keras_attention.text.special_ids import BOS_ID, EOS_ID, PAD_ID

_IDS = {
    "bos_token_id": BOS_ID,
    "eos_token_id": EOS_ID,
    "pad_token_id": PAD_ID,
    "decoder_start_token_id": BOS_ID,
    # The default of the model type would force padding as the last token.
    "forced_eos_token_id": None,
}


def write_configs(folder, model, beams):
    """Writes config.json and generation_config.json of a `keras_attention.models.Transformer`.

    The model type is "marian", the plainest encoder-decoder that the clients know; they take sizes and ids from here.
    """
    config = model.get_config()
    heads = model.decoder_blocks[0].attention.num_heads
    config = {
        "model_type": "marian",
        "architectures": ["MarianMTModel"],
        "is_encoder_decoder": True,
        # Clients take the width of the logits from here.
        "vocab_size": model.target_vocab_size,
        "decoder_vocab_size": model.target_vocab_size,
        "share_encoder_decoder_embeddings": config["share_embeddings"],
        "d_model": model.d_model,
        "encoder_layers": config["num_encoder_layers"],
        "decoder_layers": config["num_decoder_layers"],
        "num_hidden_layers": config["num_encoder_layers"],
        "encoder_attention_heads": heads,
        "decoder_attention_heads": heads,
        "encoder_ffn_dim": model.encoder_blocks[0].mlp_dim,
        "decoder_ffn_dim": model.decoder_blocks[0].mlp_dim,
        "activation_function": _activation(config["activation"]),
        "dropout": config["dropout_rate"],
        "attention_dropout": config["attention_dropout_rate"],
        "max_position_embeddings": model.max_length,
        "scale_embedding": True,
        "use_cache": True,
        **_IDS,
    }
    generation = {
        **_IDS,
        # Never part of an answer, here as in our own search.
        "bad_words_ids": [[PAD_ID], [BOS_ID]],
        # Clients count the start token too.
        "max_length": model.max_length + 1,
        "num_beams": beams,
    }
    for name, content in (("config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _activation(activation):
    return activation if isinstance(activation, str) else keras.activations.get(activation).__name__
