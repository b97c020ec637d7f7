"""What every layer must do, run on each line of layer_cases.py."""

import contract
import layer_cases
from registered import registered


def test_every_registered_layer_has_a_case():
    assert {case.cls for case in layer_cases.LAYERS} == registered("layer")


class TestEveryLayer(contract.Battery):
    cases = layer_cases.LAYERS
