"""Prose of source files and pages, and the places in it that are not plain technical English.

Prose is docstrings, comments, texts of more than two words in code, and pages without their code blocks.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PATTERNS = {
    "a person as the subject": (
        r"\b(?i:who) (?:has|have|comes|waits|asks|is|are|knows|learns|draws|runs|calls|starts|wants|needs|only)\b"
        r"|\bwhoever\b|\b(?:no|every|any|some)body\b|\b(?:he|she|him|her)\b"
    ),
    "a program that speaks": (
        r"\b(?:say|says|said|saying) (?:so|what|who|that|how|which|where|goodbye|nothing|no more)\b"
        r"|\b(?:hear|hears|heard|hearing)\b|\b(?:is|are|was|were|be|being|been) told\b"
        r"|\btells? (?:it|them|him|us|its|the|a|each|every)\b|\b(?:goodbye|farewell|last words?)\b"
        r"|\b(?:wish|wishes|minds|bury|buries|buried)\b"
    ),
    "a clause in the place of a noun": (
        r"\b(?i:what) (?:was|were|comes|came|became|goes|follows|stands|belongs|others?)\b"
        r"|\bthat (?:which|what)\b|\b(?:those|the ones) (?:that|who|which|whose)\b|\bof which\b"
    ),
    "a word of an old dialect": (
        r"\banew\b|\b(?:is|are) none\b|\bnone of (?:it|them|these|those)\b"
        r"|\bas (?:it|they) (?:stands?|comes?|came|goes)\b"
        r"|\bgo(?:es)? on\b|\bwent on\b|\bgo(?:es)? away\b|\bso (?:many|much)\b(?! that)|\bbut for\b|\ball else\b"
        r"|\b(?:are|is) the (?:most|least)\b|\bfor good\b|\bbe (?:it|they)\b|\bin silence\b|\bwithout a word\b"
        r"|\bno more\b|\bnought\b|\btake leave\b|\btakes? the place of\b"
        r"|\bon (?:its|their) way\b"
        r"|\bmend(?:s|ed)?\b|\bat fault\b|\bamiss\b|\bof a sudden\b|\bleads? nowhere\b|\bcomes? to nothing\b"
    ),
    "a first line that is a fragment": r'\A"""(?:Of|That|Those|They|What|Whose|Who|Not|So|As|From|The same)\b',
}
"""Kinds of places that a reader of English as a second language stops at, each with its regular expression."""

COMPILED = {kind: re.compile(pattern) for kind, pattern in PATTERNS.items()}
SUFFIXES = {".py", ".md", ".yaml", ".proto", ".c", ".h", ".js", ".ts", ".go", ".rs", ".rb", ".java", ".cs"}

_LINE_COMMENT = re.compile(r"(?:^|\s)(?://+|#)\s(.*)$|^\s*/?\*+\s(.*)$")
_FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Place:
    """A place to look at: the line, the kind of pattern, and the words that match it."""

    path: Path
    line: int
    kind: str
    words: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.kind}: {self.words}"


def places(path: Path) -> list[Place]:
    """Return the places of a file where its prose matches one of the patterns."""
    return [
        Place(path, line + text.count("\n", 0, found.start()), kind, found.group())
        for line, text in prose(path)
        for kind, pattern in COMPILED.items()
        for found in pattern.finditer(text)
    ]


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the texts of a file that people read, each with its first line."""
    source = path.read_text("utf-8")
    if path.suffix == ".py":
        yield from _prose_of_python(source)
    elif path.suffix == ".md":
        yield 1, _FENCE.sub(lambda found: "\n" * found.group().count("\n"), source)
    else:
        for number, line in enumerate(source.splitlines(), 1):
            if found := _LINE_COMMENT.search(line):
                yield number, found[1] or found[2] or ""


def _prose_of_python(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if id(node) in docstrings:
                yield node.lineno, f'"""{node.value}'
            elif node.value.count(" ") > 2:
                yield node.lineno, node.value
