"""One copy of a model's weights per machine, shared by all of its processes.

>>> import modelstore                                      # doctest: +SKIP
>>> state = modelstore.load_state_dict("resnet50@2")       # doctest: +SKIP
>>> network.load_state_dict(state, assign=True)            # doctest: +SKIP

Names are imported on first use: the manager needs no torch.
"""
