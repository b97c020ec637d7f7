"""Position encodings: added to embeddings, or applied inside attention."""
