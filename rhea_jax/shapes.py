"""@shaped: at trace time, an argument whose name ends in axis letters has just these axes."""

import functools
import inspect
import re

_AXES = re.compile(r"_([A-Z]+)$")


def shaped(function):
    """Checks every argument named like `x_BTD`: its rank, and that one letter means one size in the whole call.

    Costs nothing after compilation: inside jit it runs once per trace.
    Raises: ValueError naming the function, the argument, its shape and the sizes that the letters have.
    """
    signature = inspect.signature(function)
    named = {name: found[1] for name in signature.parameters if (found := _AXES.search(name))}

    @functools.wraps(function)
    def checked(*args, **kwargs):
        sizes, given = {}, signature.bind(*args, **kwargs).arguments
        for name, axes in named.items():
            if (array := given.get(name)) is None:
                continue
            shape = tuple(array.shape)
            if len(shape) != len(axes) or any(sizes.setdefault(a, n) != n for a, n in zip(axes, shape)):
                raise ValueError(f"{function.__name__}: {name} has shape {shape}, its name promises {axes} with {sizes}")
        return function(*args, **kwargs)

    return checked
