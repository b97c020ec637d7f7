"""Attention to every key: dense, blockwise, with ReLU weights; its dropout and its stores of keys and values."""
