"""A site folder into which the tests install plugins, and runs of the suite on them."""

import pytest

from tests.conformance.plugins import Site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    path = tmp_path_factory.mktemp("site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(path))
        yield Site(path)
