"""What every model must do, run on each line of model_cases.py."""

import contract
import model_cases
from registered import registered


def test_every_registered_model_has_a_case():
    assert {case.cls for case in model_cases.MODELS} == registered("model")


class TestEveryModel(contract.Battery):
    cases = model_cases.MODELS
    saved_alone = True
