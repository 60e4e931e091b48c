"""One copy of a model's weights per machine, shared by all of its processes.

>>> from sojourn import load_state_dict                    # doctest: +SKIP
>>> state = load_state_dict("resnet50@2")                  # doctest: +SKIP
>>> network.load_state_dict(state, assign=True)            # doctest: +SKIP
"""
