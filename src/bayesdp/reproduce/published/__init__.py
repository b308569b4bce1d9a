"""What the authors did, for comparison only: none of it is a bound, and nothing outside this package uses it.

accountants.py             the authors' accountant, and the same theorem where it holds
sgd.py                     training that clips the mean of a batch and not its records
variational_inference.py   variational inference whose own randomness is taken for the noise
images.py                  the two image models of Table 1
weibull.py                 synthetic gradients with heavy tails
"""
