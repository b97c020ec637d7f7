"""Attention to some of the keys: windows, blocks, global tokens, random keys, rows and columns."""
