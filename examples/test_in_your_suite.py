"""The catalogue inside your own tests: `pytest examples/test_in_your_suite.py` shows one test per property."""

from typing import Any

from cemverify import parametrize_with_properties


@parametrize_with_properties("examples.attention_numpy:mine", examples=20)
def test_cem(check: Any) -> None:
    check()
