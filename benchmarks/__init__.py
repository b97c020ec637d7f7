"""Speed, memory and quality measured against named peers; never imported by the package, never asserted in tests."""
