"""Triton's interpreter without half of its work: it patches its language for a launch, and again for each function
that the kernel calls, to the same effect.
"""

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.runtime import interpreter


def patch_once_for_a_launch() -> None:
    """Let functions that a kernel calls find the language as the launch has patched it.

    Only where Triton works like 3.9: it is slower otherwise, and computes the same.
    """
    if not (hasattr(interpreter, "_patch_lang") and hasattr(interpreter, "_LangPatchScope")):
        return
    patch = interpreter._patch_lang
    launched: list[set[int]] = []

    def patch_for_launch(fn: Callable[..., Any]) -> Any:
        languages = {id(value) for value in fn.__globals__.values() if value is tl or value is tl.core}
        if launched and languages <= launched[-1]:
            return interpreter._LangPatchScope()
        scope = patch(fn)
        if launched:
            # Nobody restores what is patched for a function, before its launch ends.
            launched[-1] |= languages
            return scope
        launched.append(languages)
        restore = scope.restore

        def end() -> None:
            launched.pop()
            restore()

        scope.restore = end
        return scope

    interpreter._patch_lang = patch_for_launch
