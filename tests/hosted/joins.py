"""A plugin whose devices join those of other processes in groups."""

from tests.conformance.plugins import DEVICE, Site


def install(path, name, mapped=True):
    """Into a folder on the import path, four devices of this name; the host sees their memory if it
    is `mapped`."""
    code = DEVICE
    for old, new in (
        ("import DeviceSummary, Feature", "import DeviceSummary, Feature, Link"),
        (
            "\nFEATURES = (",
            "\nFEATURES = (Feature.COLLECTIVES, Feature.GROUP_IPC, Feature.INJECT, ",
        ),
        ("Feature.MAP, ", "Feature.MAP, " * mapped),
        ('DeviceSummary(0, "a test")', '*(DeviceSummary(i, "a test") for i in range(4))'),
        ("describe(0, 1, 1 << 20, 0.5)", "describe(index, 4, 1 << 26, 0.5)"),
        ('name="{name}:0"', 'name=f"{name}:{index}", links=LINKS[index]'),
    ):
        assert old in code
        code = code.replace(old, new, 1)
    code += """

LINKS = [
    tuple(Link(f"{name}:{i}", "memory", 0, 0) for i in range(4) if i != index) for index in range(4)
]
"""
    Site(path).install(name, code)
    manifest = path / f"hal_plugin_{name}/hal-plugin.toml"
    known = '["collectives", "group-ipc", "inject", ' + '"map", ' * mapped
    manifest.write_text(manifest.read_text().replace('["map", ', known))
