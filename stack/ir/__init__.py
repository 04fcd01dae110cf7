"""Graph IR: typed tensor operations as hash-consed nodes, with their rules, text and interpreter."""
