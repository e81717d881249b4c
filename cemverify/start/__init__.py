"""What somebody starts from: the files that `cemverify init` writes, and the layers of `cemverify demo`."""
