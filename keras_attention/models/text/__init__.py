"""Models of text: translation, language models, text encoders."""
