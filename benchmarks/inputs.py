"""Files of the repository that the benchmarks read, and the profile that most of them share."""

import json
from pathlib import Path

from policy.profile import Profile

ROOT = Path(__file__).parents[1]
#: Service config of an emulated Tesla P4, made 20 times slower.
EMULATED_P4_CONFIG = ROOT / "configs/emulated-p4.yaml"
#: An hour of requests per second of an Azure service.
AZURE_CONVERSATION_TRACE = ROOT / "configs/traces/azure_llm_2023_conv.csv.gz"
#: GoogLeNet on a Tesla P4, as Xu et al. measured it (arXiv 2301.12865).
GOOGLENET_P4 = Profile.from_dict(
    json.loads((ROOT / "configs/profiles/googlenet-p4.json").read_text())
)
