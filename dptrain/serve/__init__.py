"""Serves a release over HTTP: gated by rights, private answers paid from a budget, adapters for encrypted states.

* `config`, `access`, `wire`: the file of a server, who may ask, what goes over the wire.
* `artifacts`, `decoding`, `scheduler`: what is loaded, and how its tokens are computed.
* `paying`, `adapters`: releases and their charges; adapters for clients that run the base model.
* `generations`: texts from private references, which pay for them.
* `service`, `app`, `metrics`, `program`: all of it together, its routes, what is told of it, and the process.

Needs ``pip install 'dptrain[serve]'``.
"""
