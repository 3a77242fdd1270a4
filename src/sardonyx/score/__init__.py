"""The scoreboard: engines against the official suite of ONNX, each case in words, not as a number.

scoreboard.py  `score`, what the command and `sardonyx.score` run
suite.py      the official cases · records.py   the training cases that we publish
engines.py    the engines: `ours/`, `peers/`, and adapter files of users
environments.py  the peers' own environments · worker.py, pool.py   the processes they run in
judge.py      one cell: how right an answer is · variants.py   the retries that tell why it is not
derivatives.py  differences of the models themselves · gradients.py   gradients against them
run.py        all of it, with results kept by content (`store.py`, `sources.py`)
score.py      what comes out, and what became worse · operators.py   the same by operator
table.py, site.py   as text, as pages
"""
