"""Tables of the benchmarks' pages, in Markdown and in HTML.

A column is (title, key in a row, unit, decimals). Rows name their cell and the contender, `who`."""
import html

from figures import shown


def texts(columns, row):
    return [shown(row[key], unit, decimals) for _, key, unit, decimals in columns]


def markdown(columns, rows):
    lines = [["cell", "who"] + [column[0] for column in columns], ["---"] * (2 + len(columns))]
    lines += [[row["cell"], row["who"]] + texts(columns, row) for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def table(columns, rows):
    """Of one cell, which it does not name."""
    lines = ["<tr><th></th>" + "".join(f"<th>{column[0]}</th>" for column in columns) + "</tr>"]
    lines += [f"<tr><td>{html.escape(row['who'])}</td>" +
              "".join(f"<td>{text}</td>" for text in texts(columns, row)) + "</tr>" for row in rows]
    return f"<table>{''.join(lines)}</table>"
