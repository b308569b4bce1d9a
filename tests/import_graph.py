"""The import graph of the package, read from its source: every import counts, also those inside functions."""

import ast
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "bayesdp"


def modules() -> dict[str, Path]:
    """Dotted names of all modules, with their files."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ["bayesdp", *path.relative_to(SOURCE).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Modules of the package that a file imports, by name or through ``importlib.import_module("...")``."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                found.add(inner if inner in known else node.module)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= {value for argument in node.args if isinstance(value := getattr(argument, "value", None), str)}
    return {name for name in found if name in known and name != "bayesdp"}


@cache
def graph() -> dict[str, set[str]]:
    """For each module those that it imports."""
    known = modules()
    return {name: imports(path, known) - {name} for name, path in known.items()}


def room(module: str) -> str:
    """The folder of a module, or the module itself if it lies at the top."""
    return module.split(".")[1] if "." in module else module


def cycle(edges: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; empty if there are none."""
    done: set[str] = set()
    for start in edges:
        stack, path = [(start, iter(sorted(edges[start])))], [start]
        while stack and start not in done:
            following = next(stack[-1][1], None)
            if following is None:
                done.add(path.pop())
                stack.pop()
            elif following in path:
                return [*path[path.index(following) :], following]
            elif following not in done:
                path.append(following)
                stack.append((following, iter(sorted(edges[following]))))
    return []
