"""Where code that was written for other systems meets the stack."""
