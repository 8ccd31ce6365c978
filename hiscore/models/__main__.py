"""``python -m hiscore.models``: print docs/models.md."""

from hiscore.models.page import page

if __name__ == "__main__":
    print(page(), end="")
