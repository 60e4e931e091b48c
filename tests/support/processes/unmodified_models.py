"""Load models by code that knows no store, as ordered on standard input, and answer in JSON.

python -m tests.support.processes.unmodified_models STORE FOLDER
"""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

import torch
from safetensors.torch import load_file

import sojourn

SMALL, LARGE = {"num_hidden_layers": 1}, {"num_hidden_layers": 6, "intermediate_size": 3072}


def bert(options):
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(hidden_size=576, vocab_size=1000, **options)).eval()


def from_pretrained(folder):
    from transformers import BertModel

    return BertModel.from_pretrained(folder).eval()


def loaded_file(folder, read=lambda folder: load_file(folder / "model.safetensors")):
    model = bert(SMALL if folder.name == "small" else LARGE)
    model.load_state_dict(read(folder))
    return model


def torch_loaded(folder):
    return loaded_file(folder, lambda folder: torch.load(folder / "model.pt", weights_only=True))


LOADERS = (from_pretrained, loaded_file, torch_loaded)


def save(folder):
    for name, options in (("small", SMALL), ("large", LARGE)):
        model = bert(options)
        model.save_pretrained(folder / name)
        torch.save(model.state_dict(), folder / name / "model.pt")


def answer(model):
    with torch.inference_mode():
        return model(torch.arange(20)[None])[0]


def memory_bytes():
    """Return this process's share of the memory that it maps (PSS)."""
    rollup = Path("/proc/self/smaps_rollup").read_text()
    return 1024 * int(rollup.partition("\nPss:")[2].split()[0])


def main():
    store, folder = map(Path, sys.argv[1:])
    loaders = {load.__name__: load for load in LOADERS}
    torch.set_num_threads(1)
    model = None
    for line in sys.stdin:
        do, *name = line.split()
        if do == "load":
            model = None
        result = memory_bytes()
        with redirect_stdout(sys.stderr):
            if do == "load":
                with sojourn.shared_weights(store):
                    model = loaders[name[0]](folder / name[1])
                answer(model)  # maps the pages
                result = memory_bytes() - result
            elif do == "answer":
                result = answer(model).sum(dtype=torch.float64).item()
            elif do == "overwrite":
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.fill_(0.5)
        sys.stdout.write(f"{json.dumps(result)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
