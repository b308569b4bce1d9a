"""Guarantees for everyone: classic differential privacy, whoever the person and whatever the data.

worst_case.py         epsilon of given noise, through dp-accounting: PLD, Rényi divergences, the exact Gaussian profile
sampling_laws.py      epsilon by the law with which batches are drawn; fixed_size.py, random_allocation.py: such laws
bounded_pld.py        privacy loss distributions within bounds of time and memory
calibration.py        the noise that a target epsilon needs
clip_bound.py         a record at the clip bound in every step: the worst case of many different settings
several_rows.py       the worst case for a person with several rows
trade_off.py          what an attacker gets: true-positive rates, advantage, the Gaussian that dominates
risk_calibration.py   the noise that keeps an attacker below a true-positive rate
"""
