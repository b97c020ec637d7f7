"""`python -m keras_attention.training.clip`."""

from keras_attention.training.clip.program import main

main()
