"""Collectives as data: chunk programs, their text, their proof, their meaning, their generators."""
