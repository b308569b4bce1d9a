"""Privacy profiles: delta as a function of epsilon, for a record whose exposures are known, never below the exact one.

conversion.py         from log-moments to (epsilon, delta) and back
step_losses.py        the privacy loss of one step, discretised upwards, in both directions
rows_losses.py        the same for a person with several rows
composed.py           many steps together, through characteristic functions, with every error added to delta
record_profiles.py    thousands of records at once: sorted, in chunks, capped by Rényi divergences
gaussian_profile.py   without sampling all steps are one Gaussian release, and the profile is a formula

On exposures that were fixed before the run these are bounds. On the trajectory of one adaptive run they are estimates.
"""

from bayesdp.profiles.gaussian_profile import gaussian_delta, gaussian_epsilon
from bayesdp.profiles.record_profiles import ExposureCounts, Precision, Profiles, profiles

__all__ = ["ExposureCounts", "Precision", "Profiles", "gaussian_delta", "gaussian_epsilon", "profiles"]
