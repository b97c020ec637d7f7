"""Mechanisms as a command line writes them."""

import pytest

from keras_attention import mechanisms


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("softmax", "softmax", {"cache": "full"}),
        ("softmax:cache=rolling", "softmax", {"cache": "rolling"}),
        ("local:radius=3", "local", {"radius": 3}),
        ("bigbird: block_size = 8, seed=5", "bigbird", {"block_size": 8, "seed": 5, "neighbours": 1}),
        ("axial:shape=[3,4],num_class_tokens=2", "axial", {"shape": (3, 4), "num_class_tokens": 2}),
        ("retention:rotary=false,epsilon=1e-3", "retention", {"rotary": False, "epsilon": 1e-3}),
        ("nystrom:kernel_size=null,num_landmarks=4", "nystrom", {"kernel_size": None, "num_landmarks": 4}),
        ('linear:feature_map="relu"', "linear", {"feature_map": "relu"}),
    ],
)
def test_a_name_and_its_options(text, name, options):
    mechanism = mechanisms.from_text(text)
    assert type(mechanism) is mechanisms.class_of(name)
    assert {key: getattr(mechanism, key) for key in options} == options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nearby:radius=3", r"Unknown mechanism 'nearby'; known are auto, softmax"),
        ("local:", r"written NAME:KEY=VALUE,KEY=VALUE. Got 'local:'. It has radius\."),
        ("local:3", r"written NAME:KEY=VALUE,KEY=VALUE. Got 'local:3'. It has radius\."),
        ("local:radius=", r"written NAME:KEY=VALUE,KEY=VALUE"),
        ("block_sparse:block_size=2,,neighbours=1", "block_size"),
        ("local:radios=3", r"mechanism 'local' has no option 'radios'. It has radius\."),
        ("local:name=mine", r"mechanism 'local' has no option 'name'. It has radius\."),
        ("local:radius=3,radius=4", r"mechanism 'local' is given radius twice"),
        ("local:radius=wide", r"radius must be .*'wide'"),
        (
            "axial:num_class_tokens=1",
            r"mechanism 'axial' needs its option shape: give AxialAttention\(shape=...\), or axial:shape=VALUE",
        ),
    ],
)
def test_text_that_describes_none(text, message):
    with pytest.raises(ValueError, match=message):
        mechanisms.from_text(text)
