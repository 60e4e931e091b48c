"""Files of the repository that the benchmarks read, and the profile that most of them share."""

import json
from pathlib import Path

from policy.profile import Profile

ROOT = Path(__file__).parents[1]
#: Service config of an emulated Tesla P4, made 20 times slower.
EMULATED_P4_CONFIG = ROOT / "configs/emulated-p4.yaml"
#: An hour of requests per second of an Azure service.
AZURE_CONVERSATION_TRACE = ROOT / "configs/traces/azure_llm_2023_conv.csv.gz"
_GOOGLENET_P4_FILE = ROOT / "configs/profiles/googlenet-p4.json"


def googlenet_p4(max_batch_size: int = 32) -> Profile:
    """Load GoogLeNet on a Tesla P4, as Xu et al. measured it (arXiv 2301.12865).

    Parameters
    ----------
    max_batch_size : int
        Largest batch of the profile. The paper measured batches of up to 32; beyond that, its
        straight lines are continued.
    """
    content = json.loads(_GOOGLENET_P4_FILE.read_text())
    return Profile.from_dict(content | {"max_batch_size": max_batch_size})


GOOGLENET_P4 = googlenet_p4()
