"""From tile IR to the statements of machines that are no single core with vector registers."""
