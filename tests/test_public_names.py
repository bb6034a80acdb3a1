"""No public name comes or goes unseen: docs/versions.md says what a change of one needs."""

import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent


def test_public_names_are_those_of_the_list():
    # In a process of its own: other tests register components of theirs.
    made = subprocess.run(
        [sys.executable, "-m", "tests.public"], cwd=HERE.parent, capture_output=True, text=True, timeout=120, check=True
    )
    found, known = set(made.stdout.splitlines()), set((HERE / "public.txt").read_text().splitlines())
    gone, new = sorted(known - found), sorted(found - known)
    assert not gone, f"these were public; deprecate them for a minor version first: {gone}"
    assert not new, f"add these to tests/public.txt by python -m tests.public: {new}"
