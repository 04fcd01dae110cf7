"""Numbers that PyTorch and the framework here both begin with: drawn by numpy."""

import numpy as np

numbers = np.random.default_rng(1)


def normal(*shape):
    return numbers.normal(size=shape).astype(np.float32)


def begin(torch, model, seed=0):
    """Give every parameter of the model values that follow from the seed."""
    draw = np.random.default_rng(seed)
    state = {}
    for name, p in model.named_parameters():
        shape = tuple(p.shape)
        noise = draw.normal(size=shape)
        if len(shape) > 1:
            fan = int(np.prod(shape[1:]))
            value = noise / np.sqrt(fan)
        else:
            value = 0.1 * noise + ("norm" in name and name.endswith("weight"))
        state[name] = torch.tensor(value.astype(np.float32))
    missing = model.load_state_dict(state, strict=False)
    assert not missing.unexpected_keys
    return model
