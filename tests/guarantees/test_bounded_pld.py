"""Privacy loss distributions whose grid is bounded: extreme runs within a limit of memory, never below the truth."""

import json
import subprocess
import sys

import bayesdp
from bayesdp.guarantees.bounded_pld import COARSENED
from bayesdp.guarantees.worst_case import ONLY_RENYI

LIMITED = """
import json, resource, sys
import bayesdp, dp_accounting.pld, dp_accounting.rdp, scipy.fft, bayesdp.profiles
used = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (used + 450 * 2**20,) * 2)  # what is touched is about half of it
found = []
for noise, rate, steps, delta in json.loads(sys.argv[1]):
    worst = bayesdp.epsilon(noise_multiplier=noise, sample_rate=rate, steps=steps, delta=delta)
    found.append([worst.epsilon, worst.accountant, worst.computed])
print(json.dumps(found))
"""


def test_extreme_runs_within_a_limit_of_memory():
    cases = [
        (0.05, 1.0, 10**6, 1e-5),
        (0.3, 1e-5, 10, 5e-5),  # took minutes and gigabytes, or fell back to 4.5 without a word
        (0.5, 1e-6, 1, 1e-8),
        (0.1, 1e-3, 1000, 1e-5),
        (1.0, 1e-6, 10**6, 1e-5),
        (1e-6, 0.5, 10**9, 1e-5),
        (1e10, 0.5, 1, 1e-12),
    ]
    run = subprocess.run([sys.executable, "-c", LIMITED, json.dumps(cases)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    full, rare, single, loud, long, hopeless, quiet = json.loads(run.stdout)
    assert full[1] == "Gaussian"
    # what finer grids gave, with gigabytes: 0.00040153 for the second
    assert 9.1e-4 < rare[0] < 9.3e-4
    assert rare[1:] == ["PLD", COARSENED]
    assert 4.0153e-4 * (1 - 1e-5) < single[0] < 4.0153e-4 * 1.002
    assert 340 < loud[0] < 342
    assert loud[1] == "PLD"
    assert 3.8e-3 < long[0] < 3.9e-3
    assert hopeless[0] > 1e6
    assert quiet[0] < 1e-9


def test_only_renyi_is_said():
    worst = bayesdp.epsilon(noise_multiplier=1, sample_rate=0.01, steps=1000, delta=1e-18)
    assert worst.accountant == "RDP"
    assert worst.computed == ONLY_RENYI
    assert worst.statement().endswith(ONLY_RENYI)
    assert worst.to_dict()["computed"] == ONLY_RENYI


def test_nothing_is_said_of_ordinary_runs():
    worst = bayesdp.epsilon(noise_multiplier=1, sample_rate=0.01, steps=1000, delta=1e-5)
    assert worst.computed is None
    assert worst.notes == ()
    assert "computed" not in worst.to_dict()


def test_a_claim_for_everyone_says_it():
    ledger = bayesdp.Ledger()
    ledger.step(noise_std=1.0, sample_rate=0.01, clip=1.0)
    assert ONLY_RENYI in ledger.claims(delta=1e-18).everyone.notes


def test_a_sampled_run_is_bounded_by_the_same_run_without_sampling():
    settings = {"noise_multiplier": 1e4, "steps": 1, "delta": 1e-15}
    sampled = bayesdp.epsilon(sample_rate=0.9, **settings).epsilon
    assert sampled <= bayesdp.epsilon(sample_rate=1.0, **settings).epsilon
