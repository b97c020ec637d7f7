"""Grids of patches, shifted windows, and the contrastive loss of images and texts."""
