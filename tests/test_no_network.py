"""No pickle, no eval, no network: read from the source, and watched in processes whose audit hook forbids them."""

import ast
import os
import subprocess
import sys

import pytest

from guarded_program import END, GUARD, SOURCE
from import_graph import modules
from recipe_data import write_adult
from warm_programs import run_warm

FORBIDDEN = {
    *("pickle", "_pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "dbm"),
    *("socket", "socketserver", "ssl", "http", "urllib", "urllib3", "requests", "httpx", "aiohttp", "asyncio"),
    *("ftplib", "smtplib", "poplib", "imaplib", "telnetlib", "xmlrpc", "webbrowser"),
    *("subprocess", "multiprocessing", "ctypes", "code", "codeop", "runpy"),
}
"""Modules that can run code from a file, reach another machine, or start another program."""
EXCEPTIONS = {
    ("bayesdp.recipes.demo", "http.server"): "`bayesdp demo --serve` shows one page on 127.0.0.1",
    ("bayesdp.cli.training_commands", "webbrowser"): "`bayesdp demo --serve` opens that page",
    ("bayesdp.ledger.database", "urllib.parse"): "quotes a path in the address of an SQLite file; connects to nothing",
}
FETCHES = {("bayesdp.recipes.datasets.scikit_learn", "fetch_openml"): "data sets of `bayesdp train` without --data"}
"""The only calls of other libraries that may fetch something."""
FETCHING = ("fetch_", "urlopen", "urlretrieve", "load_state_dict_from_url", "hf_hub_download")
FROM_TEXT = ("eval", "exec", "compile", "__import__", "os.system", "os.popen", "breakpoint", "input")
HARMLESS_WITH = {
    "torch.load": ("weights_only", "True"),
    "np.load": ("allow_pickle", "False"),
    "numpy.load": ("allow_pickle", "False"),
    "np.save": ("allow_pickle", "False"),
    "from_pretrained": ("local_files_only", "True"),
}
"""Calls that unpickle or fetch, unless they have this argument."""


def imported(tree):
    """Yield the full names of all modules that a file imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in ("import_module", "__import__"):
            yield from (argument.value for argument in node.args[:1] if isinstance(argument, ast.Constant))


def calls_of(tree):
    """Yield name, dotted name and arguments by keyword of every call in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            dotted = ast.unparse(node.func)
            keywords = {word.arg: ast.unparse(word.value) for word in node.keywords}
            yield dotted.rsplit(".", 1)[-1], dotted, keywords


def forbidden_calls(tree):
    """Yield the calls that make code from text, unpickle, or fetch."""
    for name, dotted, keywords in calls_of(tree):
        word, value = HARMLESS_WITH.get(dotted) or HARMLESS_WITH.get(name) or (None, None)
        harmless = word is None or keywords.get(word) == value
        if dotted in FROM_TEXT or not harmless or "trust_remote_code" in keywords or name.startswith(FETCHING):
            yield name


TREES = {name: ast.parse(path.read_text()) for name, path in modules().items()}


def test_no_module_imports_what_runs_code_or_connects():
    found = {(name, used) for name, tree in TREES.items() for used in imported(tree) if used.split(".")[0] in FORBIDDEN}
    assert found == set(EXCEPTIONS)


def test_no_module_calls_what_makes_code_from_text_or_unpickles_or_fetches():
    assert {(name, call) for name, tree in TREES.items() for call in forbidden_calls(tree)} == set(FETCHES)


@pytest.mark.parametrize(
    ("source", "caught"),
    [
        ("import pickle", True),
        ("def f():\n    from urllib.request import urlopen", True),
        ("import importlib\nimportlib.import_module('socket')", True),
        ("eval('1')", True),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=False)", True),
        ("np.load(path)", True),
        ("AutoModel.from_pretrained(folder)", True),
        ("from sklearn.datasets import fetch_openml\nfetch_openml('adult')", True),
        ("import re\nre.compile('a')\nmodel.eval()\ntorch.load(path, weights_only=True)", False),
    ],
)
def test_the_reading_catches_what_it_is_for(source, caught):
    tree = ast.parse(source)
    found = [used for used in imported(tree) if used.split(".")[0] in FORBIDDEN] + list(forbidden_calls(tree))
    assert bool(found) == caught


NEED_FRAMEWORKS = ("opacus", "lightning", "transformers", "jax_privacy", "flower", "recipes", "reproduce")
PUBLIC = sorted(
    name
    for name in modules()
    if name != "bayesdp.__main__" and not name.startswith(tuple(f"bayesdp.{room}" for room in NEED_FRAMEWORKS))
)

RUN = f"""
import contextlib, importlib, io
import numpy as np
for name in {PUBLIC!r}:
    importlib.import_module(name)
import bayesdp
from bayesdp.cli import main
for name in bayesdp.__all__:
    if name not in ("recipes",):
        getattr(bayesdp, name)
rng = np.random.default_rng(0)
with bayesdp.Ledger.create("run.ledger", keep_norms=True, metadata={{"name": "a <b>run</b>"}}) as ledger:
    for _ in range(5):
        ledger.step(noise_std=2.0, sample_rate=0.1, clip=1.0, audit=rng.exponential(1, 30), batch=rng.exponential(1, 9))
    ledger.claims(private=True).statement()
np.save("norms.npy", rng.exponential(1, (5, 30)))


def command(*arguments):
    sys.argv = ["bayesdp", *arguments]
    with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
        main()
    assert printed.getvalue(), arguments


command("report", "run.ledger", "-o", "report.html")
command("verify", "run.ledger")
command("show", "run.ledger", "--private", "--json")
command("claims", "run.ledger", "--markdown")
command("account", "norms.npy", "--noise-std", "2", "--clip", "1", "--sample-rate", ".1", "--delta", "1e-5", "--json")
assert "&lt;b&gt;run" in open("report.html", encoding="utf-8").read()
"""


def test_ledger_claims_report_and_commands_run_without_network_pickle_or_code_from_text(tmp_path):
    program = [sys.executable, "-c", GUARD + RUN + END]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("guarded to the end\n")


WATCHED = """
import torch
from opacus import PrivacyEngine
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import bayesdp.opacus

torch.manual_seed(0)
people = TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,)))
model = nn.Linear(4, 2)
model, optimizer, loader = PrivacyEngine().make_private(
    module=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
    data_loader=DataLoader(people, batch_size=20), noise_multiplier=1.0, max_grad_norm=1.0,
)
loss = nn.CrossEntropyLoss()
audit = (torch.randn(20, 4), torch.randint(0, 2, (20,)))
with bayesdp.opacus.watch(model, optimizer, loader, ledger="run.ledger", audit=audit, loss=loss) as run:
    for inputs, targets in loader:
        optimizer.zero_grad()
        loss(model(inputs), targets).backward()
        optimizer.step()
    assert run.ledger.steps == 3
    run.claims().statement()
"""


def test_training_with_opacus_runs_without_network_pickle_or_code_from_text(tmp_path):
    done = run_warm(code=GUARD + WATCHED + END, cwd=tmp_path, warn=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("guarded to the end\n")


COMMANDS = """
import contextlib, io
from bayesdp.cli import main
sys.argv = ["bayesdp", *{arguments!r}]
with contextlib.redirect_stdout(io.StringIO()) as printed, contextlib.suppress(SystemExit):
    main()
assert {said!r} in printed.getvalue(), printed.getvalue()
"""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        pytest.param(("demo", "-o", "demo"), "Guarantee for everyone", marks=pytest.mark.slow),
        (("attack", "game", "--small"), "stands"),
        (("train", "adult", "--data", "data", "--target-epsilon", "1", "-o", "model"), "Guarantee for everyone"),
    ],
)
def test_demo_attack_and_training_run_without_network_pickle_or_code_from_text(tmp_path, arguments, said):
    write_adult(tmp_path / "data")
    done = run_warm(code=GUARD + COMMANDS.format(arguments=arguments, said=said) + END, cwd=tmp_path, warn=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("guarded to the end\n")


ATTEMPTS = {
    "os.fork": "import os; os.fork() or os._exit(0)",
    "socket.connect": "import socket; socket.socket().connect(('192.0.2.1', 80))",
    "socket.getaddrinfo": "import socket; socket.getaddrinfo('example.org', 80)",
    "urllib.Request": "import urllib.request; urllib.request.urlopen('http://192.0.2.1/', timeout=1)",
    "pickle.find_class": "import pickle, collections; pickle.loads(pickle.dumps(collections.OrderedDict()))",
    "marshal.loads": "import marshal; marshal.loads(marshal.dumps(1))",
    "subprocess.Popen": "import subprocess; subprocess.run(['true'])",
    "compile": f"exec(compile('eval(\"1\")', {os.path.join(SOURCE, 'planted.py')!r}, 'exec'))",
}
"""What the guard must see, and a line of code that does it."""


def test_the_guard_sees_what_is_forbidden_also_where_its_error_is_swallowed(tmp_path):
    swallowed = "".join(f"try:\n    {line}\nexcept BaseException:\n    pass\n" for line in ATTEMPTS.values())
    printing = "print([event for event, _ in seen])\n"
    done = run_warm(code=GUARD + swallowed + printing + END, cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    seen = ast.literal_eval(done.stdout)
    assert [event for event in ATTEMPTS if event not in seen] == []
