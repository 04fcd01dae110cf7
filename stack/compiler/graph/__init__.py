"""From a graph to the roots of each kernel: what is stored, what is fused, where elements are."""
