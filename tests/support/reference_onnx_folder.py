"""A small encoder-decoder written node by node as the three graphs of an ONNX folder, and the same in NumPy."""

import json

import numpy as np


class OnnxToy:
    """Keys of the decoder are the embeddings of what it read; keys of the encoder are the source's embeddings.

    logits = table[last] + tanh(mean of decoder keys) @ own + masked mean of encoder keys @ cross. One layer, one head.
    Padding and begin of sentence are as likely as other tokens: a translation must not take them.
    """

    def __init__(self, rng, vocabulary, size=4):
        self.table = rng.normal(0, 1.5, (vocabulary, vocabulary)).astype("float32")
        self.table[:, 1] -= 30  # no unknown subwords
        self.table[:, 3] += 4  # answers end
        self.source_embedding, self.target_embedding = rng.normal(0, 1, (2, vocabulary, size)).astype("float32")
        self.own, self.cross = rng.normal(0, 2, (2, size, vocabulary)).astype("float32")

    def log_probs(self, source, prefix):
        """Float64 `[V]` for one row: source ids without padding, target ids from the start token on; no 0, no 2."""
        keys = self.target_embedding.astype("float64")[prefix]
        memory = self.source_embedding.astype("float64")[source]
        logits = self.table[prefix[-1]] + np.tanh(keys.mean(axis=0)) @ self.own + memory.mean(axis=0) @ self.cross
        logits[[0, 2]] = -np.inf
        logits = logits - logits.max()
        return logits - np.log(np.exp(logits).sum())

    def write(self, folder, *, max_length, integers="int64"):
        """The graphs and their config.json; `integers` is the dtype of ids and masks."""
        import onnx
        from onnx import TensorProto, helper, numpy_helper

        kind = {"int64": TensorProto.INT64, "int32": TensorProto.INT32}[integers]
        size = self.own.shape[0]
        ids = ["batch_size", "decoder_sequence_length"]
        past = ["batch_size", 1, "past_decoder_sequence_length", size]
        mask = helper.make_tensor_value_info("encoder_attention_mask", kind, ["batch_size", "encoder_sequence_length"])
        encoder_keys = ["batch_size", 1, "encoder_sequence_length", size]

        def value(name, shape, dtype=TensorProto.FLOAT):
            return helper.make_tensor_value_info(name, dtype, shape)

        def save(name, nodes, inputs, outputs, **constants):
            constants |= {"one": np.array([1]), "two": np.array([2]), "last": np.array(-1)}
            graph = helper.make_graph(
                nodes, "g", inputs, outputs, [numpy_helper.from_array(v, k) for k, v in constants.items()]
            )
            model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
            onnx.checker.check_model(model)
            onnx.save(model, folder / name)

        node = helper.make_node
        save(
            "encoder_model.onnx",
            [
                node("Gather", ["embedding", "input_ids"], ["gathered"]),
                # Padding is made large: whoever forgets the mask sees it.
                node("Cast", ["attention_mask"], ["real"], to=TensorProto.FLOAT),
                node("Unsqueeze", ["real", "two"], ["column"]),
                node("Sub", ["column", "ones"], ["absent"]),
                node("Mul", ["absent", "hundred"], ["noise"]),
                node("Add", ["gathered", "noise"], ["last_hidden_state"]),
            ],
            [value(n, ["batch_size", "encoder_sequence_length"], kind) for n in ("input_ids", "attention_mask")],
            [value("last_hidden_state", ["batch_size", "encoder_sequence_length", size])],
            embedding=self.source_embedding,
            ones=np.float32([1]),
            hundred=np.float32([100]),
        )

        def decoder(encoder_key, decoder_key):
            return [
                node("ReduceMean", [decoder_key, "two"], ["mean4"], keepdims=0),  # [B, 1, D]
                node("Tanh", ["mean4"], ["context"]),
                node("MatMul", ["context", "own"], ["own_logits"]),  # [B, 1, V]
                node("Cast", ["encoder_attention_mask"], ["real"], to=TensorProto.FLOAT),
                node("Unsqueeze", ["real", "one"], ["real3"]),  # [B, 1, S]
                node("Squeeze", [encoder_key, "one"], ["memory"]),  # [B, S, D]
                node("MatMul", ["real3", "memory"], ["summed"]),  # [B, 1, D]
                node("ReduceSum", ["real3", "two"], ["count"]),
                node("Div", ["summed", "count"], ["mean_memory"]),
                node("MatMul", ["mean_memory", "cross"], ["cross_logits"]),
                node("Gather", ["table", "input_ids"], ["token_logits"]),  # [B, 1, V]
                node("Add", ["own_logits", "cross_logits"], ["both"]),
                node("Add", ["both", "token_logits"], ["logits"]),
            ]

        weights = {"own": self.own, "cross": self.cross, "table": self.table, "embedding": self.target_embedding}
        embed = [
            node("Gather", ["embedding", "input_ids"], ["embedded"]),
            node("Unsqueeze", ["embedded", "one"], ["new"]),  # [B, 1, 1, D]
        ]
        logits = value("logits", ["batch_size", "decoder_sequence_length", len(self.table)])
        present = [value(f"present.0.decoder.{part}", past) for part in ("key", "value")]
        keep = [node("Identity", ["present.0.decoder.key"], ["present.0.decoder.value"])]
        save(
            "decoder_model.onnx",
            [
                *embed,
                node("Identity", ["new"], ["present.0.decoder.key"]),
                *keep,
                node("Unsqueeze", ["encoder_hidden_states", "one"], ["present.0.encoder.key"]),
                node("Identity", ["present.0.encoder.key"], ["present.0.encoder.value"]),
                *decoder("present.0.encoder.key", "present.0.decoder.key"),
            ],
            [
                mask,
                value("input_ids", ids, kind),
                value("encoder_hidden_states", ["batch_size", "encoder_sequence_length", size]),
            ],
            [logits, *present, *(value(f"present.0.encoder.{part}", encoder_keys) for part in ("key", "value"))],
            **weights,
        )
        save(
            "decoder_with_past_model.onnx",
            [
                *embed,
                node("Concat", ["past_key_values.0.decoder.key", "new"], ["present.0.decoder.key"], axis=2),
                *keep,
                *decoder("past_key_values.0.encoder.key", "present.0.decoder.key"),
            ],
            [
                mask,
                value("input_ids", ids, kind),
                *(value(f"past_key_values.0.decoder.{part}", past) for part in ("key", "value")),
                *(value(f"past_key_values.0.encoder.{part}", encoder_keys) for part in ("key", "value")),
            ],
            [logits, *present],
            **weights,
        )
        (folder / "config.json").write_text(json.dumps({"max_position_embeddings": max_length}))
        special = {"decoder_start_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
        (folder / "generation_config.json").write_text(json.dumps(special))
