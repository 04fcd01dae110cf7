"""Graph IR: typed tensor operations as hash-consed nodes; their rules, text and interpreter."""
