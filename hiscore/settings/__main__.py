"""``python -m hiscore.settings``: print docs/settings.md."""

from hiscore.settings.page import page

if __name__ == "__main__":
    print(page(), end="")
