"""The paper's experiments: data sets, protocol, store, tables and figures.

A run writes rows to a store; tables and figures are pure functions of the store. The run needs torch
(``pip install "lowchurn[bench]"``), reading and tabulating do not.
"""
