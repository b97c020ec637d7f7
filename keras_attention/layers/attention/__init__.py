"""The attention layer, what it is called with, and attention between two modalities."""
