"""Tensor operations as graph expressions: functions from nodes to nodes with PyTorch's meaning, no
state."""
