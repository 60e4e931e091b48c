import pytest
import torch

from benchmarks.networks import NETWORKS

pytestmark = pytest.mark.slow

#: In MiB, as in tables 3 and 4 of TrIMS.
PUBLISHED_MIB = {
    "squeezenet": 4.8,
    "resnet50": 98,
    "resnet152": 231,
    "alexnet": 238,
    "vgg16": 528,
    "alexnet-s2": 770,
}


@pytest.mark.parametrize("name", NETWORKS)
def test_the_networks_have_the_published_sizes_and_classify_images(name):
    make, side = NETWORKS[name]
    with torch.device("meta"):
        network = make().eval()
        assert network(torch.empty(2, 3, side, side)).flatten(1).shape == (2, 1000)
    size_bytes = sum(tensor.nbytes for tensor in network.state_dict().values())
    assert size_bytes / 2**20 == pytest.approx(PUBLISHED_MIB[name], rel=0.03)
