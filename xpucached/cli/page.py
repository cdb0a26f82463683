"""Door: the page as one file that loads nothing, with its data in it."""

from __future__ import annotations

import base64
import hashlib
import html

_SAFE = {"<": "\\u003c", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def report(data: str, script: str, style: str) -> str:
    """Return a page that shows ``data``, an overview as JSON, wherever it is opened.

    Its policy lets nothing run or load but this script and this style, which it names by their digests: what a name in
    the data holds stays text, whatever it is.
    """
    script = f"{script}\nmain(embedded);\n"
    policy = (
        f"default-src 'none'; script-src {_digest(script)}; style-src {_digest(style)};"
        " base-uri 'none'; form-action 'none'"
    )
    for character, escaped in _SAFE.items():
        data = data.replace(character, escaped)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">'
        '<meta name="viewport" content="width=device-width"><meta name="referrer" content="no-referrer">'
        f'<title>xpucached</title><style>{style}</style></head>\n<body><main id="root">'
        "<p>This page needs JavaScript.</p></main>\n"
        f'<script type="application/json" id="data">{data}</script>\n<script type="module">{script}</script>'
        "</body></html>\n"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode('ascii')}'"
