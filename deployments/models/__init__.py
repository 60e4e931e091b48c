"""The interface of models, and the models that come with Sojourn.

A model of your own subclasses `sojourn.Model`, and may raise `sojourn.RowsError`,
`sojourn.BadRequestError` and `sojourn.RequestError`.
"""
