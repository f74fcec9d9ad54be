"""The examples of docs/secure-sums.md run as they stand, one after the other."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "secure-sums.md"


def test_the_examples_run():
    names = {}
    for example in re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL):
        exec(compile(example, str(DOCS), "exec"), names)
    assert names["total"]["counts"].tolist() == [6, 0, 10]
    assert names["counts"].shape == (3,)
    assert 0 < names["accountant"].spent() < 1
