"""The table of the models in docs/parity.md; their logits are compared in tests/families."""

import json
import re

from kit import GOLDEN, TABLE


def test_the_documented_number_of_cases():
    rows = re.findall(r"^\| `models/(\w+)` \| (\d+) \|", TABLE.read_text(), re.MULTILINE)
    files = sorted(GOLDEN.glob("models/*/cases.json"))
    published = {path.parent.name: len(json.loads(path.read_text())["cases"]) for path in files}
    assert {name: int(number) for name, number in rows} == published
