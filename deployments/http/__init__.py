"""The replica's HTTP interface: the Open Inference Protocol v2 as an ASGI app.

The app needs no Ray. Put any `Service` behind it and run it with an ASGI server such as uvicorn.
"""
