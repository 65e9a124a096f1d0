"""An OpenAI-compatible server: one engine thread a model, many requests in each pass.

    app.py        routes                         worker.py     the engine thread of a model
    protocol.py   what may be asked              catalogue.py  models by name
    form.py       what is answered               live.py       what the dashboard shows
    guard.py      keys, bounds, headers          metrics.py    what Prometheus reads
    ray/          several of it on a cluster

Needs the extra `[serve]`.
"""
