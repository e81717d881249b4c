"""The package as others get it: built, installed alone into an empty environment, and tried in an empty folder."""
