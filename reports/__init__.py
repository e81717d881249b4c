"""Reports: result files in, tables out. `python -m reports --help`."""
