"""One self-contained HTML page that begins with the answer."""
