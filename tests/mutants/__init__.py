"""The mutant zoo: devices that are wrong in one way each, which the suite must find.

Each mutant is the reference device with a few lines changed. `python -m tests.mutants.table` runs
the suite against them and writes docs/mutants.md; `test_mutants` repeats one case for each.
"""
