"""The page of what is served names every family of the tables."""

from hiscore.models.families import DECODER_FAMILIES, DSA_FAMILIES
from hiscore.models.text_towers import TEXT_TOWERS
from tools.models_page import page


def test_every_family_has_a_row_with_what_people_know() -> None:
    text = page()
    for name, family in {**DECODER_FAMILIES, **DSA_FAMILIES}.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        assert family.known_as in row
        assert all(f"`{selector}`" in row for selector in family.selectors)
    for name, families in TEXT_TOWERS.items():
        (row,) = [line for line in text.splitlines() if line.startswith(f"| `{name}` |")]
        assert all(f"`{family}`" in row for family in families)


def test_lines_are_short_but_for_the_tables() -> None:
    assert all(len(line) <= 120 for line in page().splitlines() if not line.startswith("|"))
