"""What a trained model attends to."""

from keras_attention.diagnostics.rollout import (
    attention_rollout,
    head_maps,
    overlay,
    rollout_map,
    save_attention_pictures,
)

__all__ = ["attention_rollout", "head_maps", "overlay", "rollout_map", "save_attention_pictures"]
