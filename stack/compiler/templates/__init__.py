"""From the roots of a kernel to tile IR: loop nests, products, attention, scans, scatter-adds."""
