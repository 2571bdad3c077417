#!/usr/bin/env python3
"""Checks that no class has more than 25 public functions, or 40 in all.

    methods.py ROOT             prints FILE: CLASS: COUNTS for each class that breaks it; exit code 1 then
    methods.py --counts ROOT    prints the 20 classes with most functions

Each overload counts. Constructors, destructors, and deleted or defaulted functions do not. Tests are left out.
Communicator, which users call, may have more public functions, and so may its implementations."""
import pathlib, re, sys

MOST_PUBLIC, MOST = 25, 40
INTERFACES = {("collectives/communicator.h", "Communicator"),
              ("collectives/driver/job_communicator.h", "JobCommunicator"),
              ("collectives/grid/grid_communicator.h", "GridCommunicator")}
FOLDERS = ("bpf", "xdp", "codec", "transport", "collectives", "tools")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
ATTRIBUTES = r"(?:\s*alignas\([^)]*\)|\s*\[\[[^\]]*\]\])*"
CLASS = re.compile(rf"\b(class|struct)\b{ATTRIBUTES}\s+(\w+(?:::\w+)*)(?:<[^{{;]*>)?(?:\s+final)?"
                   r"(?:\s*:(?!:)[^{;]*)?\s*\{")
INITIALISERS = re.compile(r"(\)\s*(?:noexcept)?)\s*:(?!:).*", re.DOTALL)
FUNCTION = re.compile(r"(?<![\w~])(~?\w+|operator\S{1,3})\s*\((?:[^()]|\([^()]*\))*\)"
                      r"\s*(?:const|noexcept|override|final|&&?|\s)*(?:->.*)?(?:=\s*(\w+))?$", re.DOTALL)
NO_FUNCTION = re.compile(r"(using|friend|typedef|static_assert|enum|template\s*<.*>\s*(class|struct)\b)", re.DOTALL)


def statements(text, at):
    """The statements of the class body that begins at `at`, without what stands in inner braces."""
    braces, parentheses, statement = 1, 0, ""
    while braces and at < len(text):
        char = text[at]
        at += 1
        if char in "{}":
            braces += 1 if char == "{" else -1
        elif braces == 1:
            parentheses += (char == "(") - (char == ")")
        if not parentheses and (braces == 0 or braces == 1 and char in ";}"):
            yield statement.strip()
            statement = ""
        elif braces == 1 and char not in "{}":
            statement += char


def is_function(statement, kind):
    """Whether a statement of the class `kind` declares a function that counts."""
    found = FUNCTION.search(INITIALISERS.sub(r"\1", statement))
    if not found or NO_FUNCTION.match(statement) or found.group(2) in ("delete", "default"):
        return False
    name = found.group(1)
    initialises_a_member = "=" in statement[:found.start()] and not name.startswith("operator")
    return not initialises_a_member and name.lstrip("~") != kind.split("::")[-1]


def count(text, found):
    """The numbers of public functions and of others of the class that the match `found` begins."""
    access = "public" if found.group(1) == "struct" else "private"
    numbers = {"public": 0, "private": 0}
    for statement in statements(text, found.end()):
        while label := re.match(r"(public|private|protected)\s*:(?!:)\s*", statement):
            access = "public" if label.group(1) == "public" else "private"
            statement = statement[label.end():]
        numbers[access] += is_function(statement, found.group(2))
    return numbers["public"], numbers["private"]


def main():
    counts = "--counts" in sys.argv
    root = pathlib.Path(sys.argv[-1])
    rows = []
    for path in sorted(root.glob("*/**/*")):
        name = path.relative_to(root).as_posix()
        if name.split("/")[0] in FOLDERS and path.suffix in (".h", ".cc"):
            text = COMMENT.sub("", path.read_text(encoding="utf-8"))
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
