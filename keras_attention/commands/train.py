"""`keras-attention train ...`: one sub-command per kind of model."""

import typer

from keras_attention.training import clip, language, translation, vision

app = typer.Typer(help="Train a model with model.fit and write a run folder.", no_args_is_help=True)
app.command("translation")(translation.command)
app.command("vit")(vision.command)
app.command("clip")(clip.command)
app.command("lm")(language.command)
