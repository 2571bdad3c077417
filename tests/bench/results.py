#!/usr/bin/env python3
"""Makes the tables of README.md from the data files in results/.

    results.py [NAME...]   prints the table of each NAME, or all tables
    results.py --check     ends with 1 unless README.md has these tables

A data file is results/YYYY-MM-DD-NAME.json. The newest file of each NAME counts. Its keys:

    date, machine, command, note   the line above the table, without what the machine has in brackets
    columns, rows                  all figures of the run. A number keeps its digits
    page                           optional: the part of them that the table has. Either
      {"columns": [...]}                     these columns, or
      {"by": B, "across": A, "show": [...]}  a line for each value of column B, a column for each value of column A.
                                             A field has the values of the columns `show`
      {..., "of": [...]}                     only these values of column A

README.md has a table between the lines `<!-- results: NAME -->` and `<!-- end -->`, or it only names it: `NAME`.
After a new data file, replace these lines by the output of `results.py NAME`."""
import argparse, json, pathlib, re, sys, textwrap

FOLDER = pathlib.Path(__file__).resolve().parent
PAGE = FOLDER / "README.md"
BLOCK = re.compile(r"^<!-- results: (\S+) -->\n(.*?)^<!-- end -->$", re.DOTALL | re.MULTILINE)


def across(data, page):
    """The titles and the rows of a table with a column for each value of `page["across"]`."""
    rows = [dict(zip(data["columns"], row)) for row in data["rows"]]
    titles = page.get("of") or list(dict.fromkeys(row[page["across"]] for row in rows))
    fields = {(row[page["by"]], row[page["across"]]):
              ", ".join(row[name] for name in page["show"] if row[name] not in ("", "-")) for row in rows}
    lines = dict.fromkeys(row[page["by"]] for row in rows)
    return [page["by"], *titles], [[line, *(fields.get((line, title), "") for title in titles)] for line in lines]


def table(path):
    """The line that says where the figures come from, and the table."""
    data = json.loads(path.read_text(encoding="utf-8"), parse_int=str, parse_float=str)
    page = data.get("page", {})
    machine = re.sub(r" \(.*?\)", "", data["machine"])
    about = f"{data['date']}, {machine}, `{data['command']}`. {data['note']}"
    if "across" in page:
        titles, rows = across(data, page)
        about += f" Each field: {', '.join(page['show'])}."
    else:
        titles = page.get("columns", data["columns"])
        places = [data["columns"].index(title) for title in titles]
        rows = [[row[place] for place in places] for row in data["rows"]]
    lines = [re.sub(" +", " ", f"| {' | '.join(line)} |\n") for line in (titles, *rows)]
    lines.insert(1, "|" + "---|" * len(titles) + "\n")
    return textwrap.fill(about, 118, break_long_words=False, break_on_hyphens=False) + "\n\n" + "".join(lines)


def check(tables):
    """What is wrong with the page, a line each."""
    text = PAGE.read_text(encoding="utf-8")
    blocks = dict(BLOCK.findall(text))
    for name in sorted(tables.keys() | blocks.keys()):
        if name not in tables:
            yield f"{PAGE.name}: no data file has the table {name}"
        elif name not in blocks and f"`{name}`" not in text:
            yield f"{PAGE.name} neither has nor names the table {name}"
        elif blocks.get(name, tables[name]) != tables[name]:
            yield f"{PAGE.name}: the table {name} is not that of its data file: see results.py {name}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="tables to print (all)")
    parser.add_argument("--check", action="store_true", help="compares the page with the data files")
    arguments = parser.parse_args()
    tables = {path.stem[11:]: table(path) for path in sorted((FOLDER / "results").glob("????-??-??-*.json"))}
    if arguments.check:
        sys.exit("\n".join(check(tables)) or 0)
    for name in arguments.names or tables:
        if name not in tables:
            parser.error(f"no data file results/YYYY-MM-DD-{name}.json")
        print(f"<!-- results: {name} -->\n{tables[name]}<!-- end -->\n")


main()
