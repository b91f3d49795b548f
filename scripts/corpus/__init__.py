"""Building a real English-German corpus out of Debian packages: extractors, cleaning, splitting, report.

Run through ``scripts/prepare_corpus.sh``; the package is importable with ``scripts/`` on the Python path.
"""
