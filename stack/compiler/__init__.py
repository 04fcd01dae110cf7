"""From graph IR to fused tile kernels to program text in a format that a device accepts."""
