"""Models whose trained layers are checked: `cemverify check MODULE:build --checkpoint FILE --layer NAME`."""
