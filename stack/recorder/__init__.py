"""How work on tensors that share memory becomes graph expressions. It knows no framework."""
