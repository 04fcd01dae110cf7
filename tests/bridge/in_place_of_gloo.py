"""Backend hal under the name of gloo, for tests that ask for the name."""

from datetime import timedelta
from types import SimpleNamespace

from stack.bridge.torch.meeting import meet
from stack.bridge.torch.process_group import HalProcessGroup


class InPlaceOfGloo(HalProcessGroup):
    """Made as torch makes ProcessGroupGloo."""

    _Options = SimpleNamespace

    def __init__(self, store, rank, size, options=None, timeout=None):
        deadline = options._timeout if timeout is None else timeout
        deadline = deadline if isinstance(deadline, timedelta) else timedelta(seconds=deadline)
        super().__init__("gloo", meet(store, rank, size, deadline), store)

    @staticmethod
    def create_device(**place):
        return None

    def _set_sequence_number_for_group(self):
        pass
