"""Starting points: the files that `cemverify init` writes, and the layers of `cemverify demo`."""
