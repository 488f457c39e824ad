"""From a reply to the program in it, and from a program to a name that its layout does not change."""

from __future__ import annotations

import hashlib
import io
import re
import tokenize

_OPENING = re.compile(r"( {0,3})(`{3,})[^`]*")
_CLOSING = re.compile(r" {0,3}(`{3,})[ \t]*")
_LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER}
_NAMED = {tokenize.INDENT: ">", tokenize.DEDENT: "<", tokenize.NEWLINE: ";"}  # whatever blanks they are made of


def last_block(text: str) -> str | None:
    """Return the inside of the last closed fenced block, None without one that holds anything.

    A block begins with a line of three or more backticks and a language or nothing, and ends with a line of at least
    as many; up to three blanks may stand before either.
    """
    block: list[str] | None = None
    found: list[str] = []
    fence, indent = "", 0
    for line in text.split("\n"):
        bare = line.removesuffix("\r")
        if block is None:
            if opening := _OPENING.fullmatch(bare):
                indent, fence, block = len(opening[1]), opening[2], []
        elif (closing := _CLOSING.fullmatch(bare)) and len(closing[1]) >= len(fence):
            found, block = block, None
        else:
            block.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
    program = "\n".join(found)
    return program + "\n" if program.strip() else None


def short_name(program: str) -> str:
    """Eight hexadecimal digits that name a program; comments, blank lines and blanks between words do not count."""
    words = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(program).readline):
            if token.type not in _LAYOUT:
                words.append(_NAMED.get(token.type, token.string))
    except (tokenize.TokenError, SyntaxError):  # no Python: the text names itself
        words = [program.strip()]
    return hashlib.sha256("\n".join(words).encode("utf-8", "surrogatepass")).hexdigest()[:8]
