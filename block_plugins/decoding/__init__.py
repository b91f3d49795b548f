"""Decoding: models, tensors and frozen settings in, hypotheses and statistics out. Knows nothing of tasks, flags or
files.
"""
