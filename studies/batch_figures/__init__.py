"""Figure 4 of BATCH and its 100 ms bill by this project's model: docs/batch-figures.md.

Of the paper (Ali et al., BATCH, SC'20, section II and eq. (1)) are the prices, K1 = 1.66667e-5 USD per GB-second and K2 = 2e-7 USD
per call, the batch sizes, timeouts and memory sizes of figure 4, and the 100 ms that AWS rounded durations up to until December
2020. What the paper does not give is ours and stands at the top of ``computation``: the service times of the network, and the
arrivals. All of it is computed within seconds, so nothing is kept.
"""
