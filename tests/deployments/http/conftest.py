import pytest

from tests.support.models.doubles_service import make_service


@pytest.fixture
async def service():
    async with make_service() as made:
        yield made
