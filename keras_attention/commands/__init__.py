"""One file per command of `keras-attention`."""
