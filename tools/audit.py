"""Whether a locked dependency has a known vulnerability: `make audit`, by pip-audit.

Ends with 1 if one has that is not accepted below. Where the advisories cannot be reached, it says so and ends with 0.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

LOCK = Path(__file__).resolve().parent.parent / "constraints.txt"
ACCEPTED: dict[str, str] = {}
"""Id of an advisory -> why it does not concern Limelight."""


def main() -> int:
    """Audits the lock."""
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--no-deps", "--disable-pip"]
    done = subprocess.run(
        [*command, "--format", "json", "--progress-spinner", "off", "--timeout", "15"],
        capture_output=True,
        text=True,
        check=False,
    )
    try:
        report = json.loads(done.stdout)
    except ValueError:
        lines = done.stderr.strip().splitlines() or ["it said nothing"]
        print(f"audit: the advisories cannot be reached ({lines[-1][:200]}); nothing was audited")
        return 0
    return verdict(report)


def verdict(report: dict[str, Any]) -> int:
    """What pip-audit's report means: the exit code."""
    packages = report["dependencies"]
    audited = [package for package in packages if "skip_reason" not in package]
    if not audited:
        print(f"audit: the advisories know none of {len(packages)} packages, or cannot be reached; nothing was audited")
        return 0
    bad = 0
    for package in audited:
        for advisory in package.get("vulns", ()):
            name = f"{package['name']} {package['version']}: {advisory['id']}"
            if (reason := ACCEPTED.get(advisory["id"])) is not None:
                print(f"audit: {name}, accepted: {reason}")
                continue
            bad += 1
            fixed = ", ".join(advisory.get("fix_versions", ())) or "no version"
            print(f"audit: {name}, fixed in {fixed}", file=sys.stderr)
    print(f"audit: {len(audited)} of {len(packages)} packages audited, {bad} vulnerabilities to look at")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
