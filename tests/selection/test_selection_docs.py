"""The worked example of docs/selection.md runs as it stands and stays short."""

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs" / "selection.md"


def test_a_selector_of_your_own():
    example = re.findall(r"```python\n(.*?)```", DOCS.read_text(encoding="utf-8"), flags=re.DOTALL)[-1]
    assert len(example.splitlines()) < 40
    names = {}
    exec(compile(example, str(DOCS), "exec"), names)
    picks = names["picks"]
    assert [len(rows) for rows in picks.indices] == [5, 3]
    assert len(set(picks.order)) == 8
    assert (picks.gains[:-1] >= picks.gains[1:] - 1e-6).all()
