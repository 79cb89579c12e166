"""What signing costs beside the signatures themselves."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def measure(*options):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.signing", "--json", *options], cwd=ROOT, capture_output=True, check=True, timeout=300
    )
    return json.loads(done.stdout)


def test_the_measurement_says_what_was_measured():
    result = measure("--records", "200", "--rounds", "2")
    assert set(result) == {"bare_s", "sign_s", "ratio", "records"} and result["records"] == 200
    assert 0 < result["bare_s"] < 10 and 0 < result["sign_s"] < 10


@pytest.mark.slow
def test_signing_100000_records_takes_at_most_one_and_a_half_times_the_bare_signatures():
    assert measure("--records", "100000", "--rounds", "3")["ratio"] <= 1.5
