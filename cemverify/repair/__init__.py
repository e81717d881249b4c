"""Single edits of an implementation's source that make its violated properties hold."""
