"""Layers of vision models: patches, their merging, windows of blocks."""
