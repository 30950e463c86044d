"""The three readers' stories: the answer stands in the first lines of each command, on 80 columns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

STORIES = Path(__file__).parents[1] / "docs" / "stories"
BLOCK = re.compile(r"^```console\n\$ (computeflow .*?)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ANSWERS = {
    "founder": r"Rent: .* days .*\$\d+k \(\$.* to \$.*It rests on \d+ measured",
    "engineer": r"Stands at \d+\.\d % MFU.* leads? to \d+\.\d % MFU.*First: ",
    "platform": r"goes to \d causes, the largest: .*Do first: |No finding: ",
}
MAX_LINES = 25


@pytest.mark.parametrize("story", ANSWERS)
def test_the_answer_is_in_the_first_lines(story: str) -> None:
    blocks = BLOCK.findall((STORIES / f"{story}.md").read_text())
    assert blocks
    for command, output in blocks:
        lines = output.splitlines()
        assert all(len(line) <= 80 for line in lines), command
        top = " ".join(lines[:MAX_LINES])
        assert re.search(ANSWERS[story], top), command
