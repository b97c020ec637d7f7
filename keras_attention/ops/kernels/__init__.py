"""Attention whose cost is not T x S: kernels, landmarks, projections, hashing, retention."""
