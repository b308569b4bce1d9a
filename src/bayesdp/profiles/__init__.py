"""Privacy profiles: the exact trade between epsilon and delta of a record whose exposures are known.

    step_losses.py      the privacy loss of one step, discretised upwards, both directions
    composed.py         many steps together, through characteristic functions, every error added to delta
    histograms.py       thousands of records at once: sorted, in chunks, capped by Rényi divergences
    gaussian.py         without sampling all steps are one Gaussian release, and the profile is a formula

On exposures that were fixed before the run these are bounds. On the trajectory of one adaptive run they are estimates.
"""

from bayesdp.profiles.gaussian_profile import gaussian_delta, gaussian_epsilon
from bayesdp.profiles.record_profiles import ExposureCounts, Precision, Profiles, profiles

__all__ = ["ExposureCounts", "Precision", "Profiles", "gaussian_delta", "gaussian_epsilon", "profiles"]
