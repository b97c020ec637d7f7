"""`keras-attention train ...`: one sub-command per kind of model."""

from keras_attention.console import plain_app
from keras_attention.training.clip.program import command as train_clip
from keras_attention.training.language.program import command as train_language_model
from keras_attention.training.translation.program import command as train_translation
from keras_attention.training.vision.program import command as train_classifier

app = plain_app(help="Train a model with model.fit and write a run folder.", no_args_is_help=True)
app.command("translation")(train_translation)
app.command("image-classifier")(train_classifier)
app.command("vit", hidden=True)(train_classifier)  # the older name
app.command("clip")(train_clip)
app.command("lm")(train_language_model)
