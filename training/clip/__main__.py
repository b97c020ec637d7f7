"""`python -m keras_attention.training.clip`."""

from keras_attention.training.clip.task import main

main()
