"""The paper's accountant, and what makes it fast: Hölder's inequality with Student-t estimates for all orders at once.

bayesian_accountant.py   the accountant: steps in, epsilon and delta out
excess_table.py          the cost of a step for all orders in one pass, and why it is a bound
holder_sums.py           the sums of Hölder's inequality over the samples of a step, placed on a grid
square_grid.py           that grid, of squared exposures
nodes.py                 what the nodes of the grid cost, kept from step to step
"""
