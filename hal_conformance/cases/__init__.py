"""The cases, a file for each subject; `Cases` at the top of a file names its group and level."""
