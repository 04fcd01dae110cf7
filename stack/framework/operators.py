"""What tensors can do: a method for each row of the table of operators. The types are generated."""


class Operators:
    """The base of tensors to which `stack.framework.tensor` gives a method for each operator."""

    __slots__ = ()
