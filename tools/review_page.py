# SPDX-License-Identifier: Apache-2.0
"""A review as one HTML page that loads nothing."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING, Final

from railweave.tools.drawing import compose
from railweave.tools.render_svg import to_svg

if TYPE_CHECKING:
    from collections.abc import Sequence

    from railweave.tools.review import Review

__all__ = ["review_html"]

_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 15px/1.45 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; }}
div {{ overflow-x: auto; }}
figure {{ margin: 1rem 0; background: #fff; border-radius: 4px; }}
figure svg {{ display: block; width: 100%; height: auto; }}
table {{ border-collapse: collapse; margin: .5rem 0 1.5rem; }}
th, td {{ text-align: left; padding: .2rem .8rem .2rem 0; border-bottom: 1px solid #8884; vertical-align: top; }}
.blocking td:first-child {{ color: #c22; font-weight: 600; }}
.warning td:first-child {{ color: #b70; font-weight: 600; }}
@media print {{ body {{ max-width: none; margin: 0; font-size: 10pt; }} }}
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
    parts = [f"<figure>{svg[svg.index('<svg') :]}</figure>"]
    # the verdict, which comes last on a terminal, is what a reader of the page wants first
    for title, rows in (*sections[-1:], *sections[:-1]):
        if not rows[1:]:
            continue
        head, *body = rows
        cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
        lines = [
            f'<tr class="{html.escape(row[0])}">'
            + "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
            + "</tr>"
            for row in body
        ]
        parts.append(
            f"<h2>{html.escape(title)}</h2><div><table><thead><tr>{cells}</tr></thead><tbody>"
            f"{''.join(lines)}</tbody></table></div>"
        )
    return _PAGE.format(title=html.escape(f"Review of {review.fabric.name}"), body="\n".join(parts))
