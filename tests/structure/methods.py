#!/usr/bin/env python3
"""Checks that no class has more than 25 public functions, or 40 in all.

    methods.py ROOT      prints FILE: CLASS: COUNTS for each class that breaks it; exit code 1 then
    methods.py --counts ROOT    prints the 20 classes with most functions

Constructors, destructors and what is deleted do not count; overloads do. Tests are left out. The public
classes that users call may have more public functions: they have no others."""
import pathlib, re, sys

MOST_PUBLIC, MOST = 25, 40
INTERFACES = {("collectives/communicator.h", "Communicator")}
CLASS = re.compile(r"\b(class|struct)\s+(\w+)(?:\s+final)?(?:\s*:[^{;()]*)?\s*\{")
FUNCTION = re.compile(r"(?<![\w~])(~?\w+|operator\S{1,3})\s*\((?:[^()]|\([^()]*\))*\)"
                      r"\s*(?:const)?\s*(?:noexcept)?\s*(?:override|final)?\s*(?:->.*)?(?:=\s*(\w+))?$", re.DOTALL)


def statements(text, at):
    """The statements of the class body that begins at `at`, each with its access; bodies are cut out."""
    depth, statement = 1, ""
    while depth and at < len(text):
        char = text[at]
        at += 1
        depth += (char == "{") - (char == "}")
        if depth == 1 and char in ";}" or depth == 0:
            yield statement.strip()
            statement = ""
        elif depth == 1:
            statement += char


def count(text, found):
    """The numbers of public functions and of others of the class that the match `found` begins."""
    access = "public" if found.group(1) == "struct" else "private"
    numbers = {"public": 0, "private": 0}
    for statement in statements(text, found.end()):
        while label := re.match(r"(public|private|protected)\s*:\s*", statement):
            access = "public" if label.group(1) == "public" else "private"
            statement = statement[label.end():]
        statement = re.split(r"\)\s*:\s", statement)[0] + (")" if re.search(r"\)\s*:\s", statement) else "")
        function = FUNCTION.search(statement)
        if not function or re.match(r"(using|friend|typedef|static_assert|enum|template\s*<.*>\s*(class|struct)\b)",
                                    statement):
            continue
        name = function.group(1)
        if name.lstrip("~") == found.group(2) or function.group(2) in ("delete", "default"):
            continue
        numbers[access] += 1
    return numbers["public"], numbers["private"]


def main():
    counts = "--counts" in sys.argv
    root = pathlib.Path(sys.argv[-1])
    rows = []
    for path in sorted(root.glob("*/**/*.h")):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] not in ("bpf", "xdp", "codec", "transport", "collectives", "tools"):
            continue
        text = re.sub(r"//.*", "", path.read_text(encoding="utf-8"))
        rows += [(*count(text, found), name, found.group(2)) for found in CLASS.finditer(text)]
    if not rows:
        sys.exit(f"{root}: no classes")
    rows.sort(key=lambda row: -row[0] - row[1])
    broken = [row for row in rows if row[0] + row[1] > MOST or
              (row[0] > MOST_PUBLIC and row[2:] not in INTERFACES)]
    for public, others, name, kind in rows[:20] if counts else broken:
        print(f"{name}: {kind}: {public} public functions, {others} others")
    sys.exit(1 if broken and not counts else 0)


if __name__ == "__main__":
    main()
