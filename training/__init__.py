"""Training scripts and what they are made of; imported as keras_attention.training."""
