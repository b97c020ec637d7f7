"""Writing SavedModels."""
