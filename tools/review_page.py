# SPDX-License-Identifier: Apache-2.0
"""A review as one HTML page that loads nothing."""

from __future__ import annotations

import html
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from railweave.fabric.words import plural
from railweave.tools.drawing import compose
from railweave.tools.render_svg import to_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.review import Review

__all__ = ["review_html"]

_FIGURE: Final = re.compile(r"[\d.,]+( ?[A-Za-z%]{1,4})?")
_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; margin: 0 0 .6rem; overflow-wrap: anywhere; }} h2 {{ font-size: 1.15rem; margin: 1.8rem 0 .3rem; }}
.wide {{ overflow-x: auto; }}
dl {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(10rem, 1fr)); gap: .6rem; margin: 1rem 0; }}
dl div {{ border: 1px solid #8886; border-radius: 6px; padding: .4rem .7rem; }}
dt {{ font-size: .82rem; opacity: .75; }} dd {{ margin: 0; font-size: 1.12rem; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }}
dd small {{ display: block; font-size: .8rem; opacity: .75; }}
figure {{ margin: 1rem 0; background: #fff; border-radius: 4px; overflow-x: auto; }}
figure svg {{ display: block; width: 100%; min-width: 44rem; height: auto; }}
table {{ border-collapse: collapse; margin: .3rem 0 1rem; min-width: 40rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top; }}
th {{ opacity: .75; font-weight: 600; }} .n {{ text-align: right; white-space: nowrap; }} td:first-child {{ white-space: nowrap; }}
.blocking td:first-child {{ color: #c22; font-weight: 600; }}
.warning td:first-child {{ color: #b70; font-weight: 600; }}
.fabric td {{ font-weight: 600; }}
@media print {{
  @page {{ size: A4; margin: 12mm; }}
  body {{ max-width: none; margin: 0; padding: 0; font-size: 8.5pt; line-height: 1.25; }}
  h1 {{ font-size: 14pt; }} h2 {{ font-size: 10.5pt; margin: 8pt 0 2pt; break-after: avoid; }}
  dl {{ grid-template-columns: repeat(5, 1fr); gap: 4pt; margin: 4pt 0; }} dl div {{ padding: 2pt 5pt; }}
  dd {{ font-size: 10pt; }} dt, dd small {{ font-size: 7pt; }}
  figure svg {{ min-width: 0; }} table {{ min-width: 0; font-size: 7.5pt; margin: 0 0 4pt; }}
  th, td {{ padding: 1pt 6pt 1pt 0; }} tr, dl, figure {{ break-inside: avoid; }} thead {{ display: table-header-group; }}
}}
</style></head><body><h1>{title}</h1>
{body}</body></html>
"""  # noqa: E501


def review_html(review: Review, sections: Sequence[tuple[str, Sequence[Sequence[str]]]]) -> str:
    """Write a review as one HTML page that loads nothing.

    Parameters
    ----------
    review
        The review.
    sections
        Title and rows of each table, the first row its head; every cell is escaped. The last, the
        verdict, is shown first, below a drawing of the fabric.
    """
    svg = to_svg(compose(review.fabric)).replace(' xmlns="http://www.w3.org/2000/svg"', "")
    parts = [_cards(review), f"<figure>{svg[svg.index('<svg') :]}</figure>"]
    # the verdict, which comes last on a terminal, is what a reader of the page wants first
    for title, rows in (*sections[-1:], *sections[:-1]):
        if not rows[1:]:
            continue
        head, *body = rows
        right = [_numeric([row[column] for row in body]) for column in range(len(head))]
        cells = _cells("th", head, right)
        lines = [
            f'<tr class="{html.escape(row[0])}">{_cells("td", row, right)}</tr>' for row in body
        ]
        parts.append(
            f'<h2>{html.escape(title)}</h2><div class="wide"><table><thead><tr>{cells}</tr></thead>'
            f"<tbody>{''.join(lines)}</tbody></table></div>"
        )
    return _PAGE.format(title=html.escape(f"Review of {review.fabric.name}"), body="\n".join(parts))


def _cells(tag: str, row: Sequence[str], right: Sequence[bool]) -> str:
    marks = (" class=n" if number else "" for number in right)
    return "".join(
        f"<{tag}{mark}>{html.escape(cell)}</{tag}>" for cell, mark in zip(row, marks, strict=True)
    )


def _numeric(cells: Sequence[str]) -> bool:
    """Return whether a column holds figures, with their units, and stands at the right."""
    found = [cell for cell in cells if cell not in ("", "-", "unpriced")]
    return bool(found) and all(_FIGURE.fullmatch(cell) for cell in found)


def _cards(review: Review) -> str:
    """Return the key figures that head the page."""
    from railweave.tools.commands.bom import fabric_totals
    from railweave.tools.words import shown_time

    summary, totals = review.summary, fabric_totals(review.bill)
    switches = review.bill.number("switch")
    facts = {fact.rule: fact for fact in review.report.facts}
    found: list[tuple[str, str, str]] = [
        ("GPUs", f"{summary['gpus']:,}", plural(summary["hosts"], "host")),
        ("switches", f"{switches:,}", plural(review.bill.number("optic"), "optic")),
    ]
    for what, said in totals.items():
        figure, _, without = said.partition(", ")
        found.append((f"{what} of the fabric", figure, without))
    if "bisection" in facts and facts["bisection"].checked:
        text, _, share = facts["bisection"].text.partition(" between the halves of ")
        found.append(("bisection", text, share.rpartition(", ")[2]))
    for name, job in review.workloads.items():
        said = "cannot run" if job.time_ps is None else shown_time(job.time_ps)
        found.append((name, said, f"bound {shown_time(job.bound_ps)}"))
    if review.damages:
        worst = review.damages[0]
        found.append(
            ("worst failure", f"a lost {worst.failure.part}", f"one of {worst.failure.count:,}")
        )
    grades = Counter(one.grade for one in review.verdicts)
    said = ", ".join(
        f"{count} {grade}" if grade == "blocking" else plural(count, grade)
        for grade, count in grades.items()
    )
    found.append(("verdict", said or "clean", ""))
    cards = (
        f"<div><dt>{html.escape(title)}</dt><dd>{html.escape(figure)}"
        + (f"<small>{html.escape(more)}</small>" if more else "")
        + "</dd></div>"
        for title, figure, more in found
    )
    return f"<dl>{''.join(cards)}</dl>"
