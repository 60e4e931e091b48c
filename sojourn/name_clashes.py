"""Find a user's folder or module that has the name of one of Sojourn's packages.

Python imports the first one that it finds, so one of the two hides the other.
"""

from importlib.util import find_spec
from pathlib import Path

_ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("autoscaler", "deployments", "loadtests", "policy")


def hidden_package() -> str | None:
    """Return an error if this process would import another package than Sojourn's own."""
    for name in PACKAGES:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            return f"{name}: not installed next to {_ROOT / 'sojourn'}; install Sojourn again"
        found = Path(spec.origin).resolve()
        if not found.is_relative_to(_ROOT / name):
            return _message(found if found.stem == name else found.parent)
    return None


def clash_in(folder: Path) -> str | None:
    """Return an error if replicas that run in `folder` would confuse a package with Sojourn's."""
    folder = folder.resolve()
    if folder == _ROOT:
        return None
    for name in (*PACKAGES, "sojourn"):
        module, package = folder / f"{name}.py", folder / name
        if module.exists():
            return _message(module)
        if package.is_dir() and any(package.glob("*.py")):
            return _message(package)
    return None


def _message(path: Path) -> str:
    return (
        f"{path} has the name of one of Sojourn's own packages, and one would hide the other: "
        "rename it, or run this in another folder"
    )
