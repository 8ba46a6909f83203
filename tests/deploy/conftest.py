"""Each set of manifests that is applied together."""

import pytest

from tests.deploy.manifests import GATEWAY, Manifest, built, of, of_base, sets


@pytest.fixture(params=sets())
def manifests(request: pytest.FixtureRequest) -> list[Manifest]:
    if request.param in (None, GATEWAY):
        return of_base() + ([] if request.param is None else of(GATEWAY))
    return built(request.param)
