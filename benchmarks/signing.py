"""What signing costs beside the signatures themselves: `python -m benchmarks.signing --records 100000 --json`.

Bare signing and signing a JSONL file run alternately in one process, part by part, so that both meet the same machine;
the times are medians over the rounds.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from attest.attestation import subject_of
from attest.corpus.signing import SigningTemplate, TemplateEncoder, sign_corpus
from attest.keys import generate, public_bytes

LINE = b'{"text": "Patient %08d reports a cough for two weeks, no fever; chest clear on auscultation.", "label": 0}\n'


def signing(records: int = 100_000, rounds: int = 5) -> dict[str, float | int]:
    """Time signing `records` lines of JSONL against as many bare signatures over messages of the same length.

    Args:
        records: Lines of the file.
        rounds: How often both are timed, in turn.

    Returns:
        `bare_s` and `sign_s` in seconds (medians), their `ratio` (median of the ratios of the rounds), and `records`.
    """
    key = generate()
    template = SigningTemplate(
        contributor="alice",
        data_class="clinic/notes",
        admissibility_class="sensitive",
        clip_norm_micro=500_000,
        noise_multiplier_micro=1_200_000,
        corpus="clinic-notes-2026",
        not_before=1_800_000_000,
        not_after=1_831_536_000,
        principal="patient-000001",
        max_examples=1,
    )
    encoder = TemplateEncoder(template, public_bytes(key))
    payload = encoder.descriptor(bytes(32), bytes(16))
    message = encoder.to_be_signed(payload, subject_of(payload))
    bare, signed = [], []
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "notes.jsonl"
        with data.open("wb") as stream:
            stream.writelines(LINE % index for index in range(records))
        for _ in range(rounds):
            start = time.perf_counter()
            for _ in range(records):
                key.sign(message)
            middle = time.perf_counter()
            sign_corpus(data, None, key, template)
            signed.append(time.perf_counter() - middle)
            bare.append(middle - start)
    return {
        "bare_s": statistics.median(bare),
        "sign_s": statistics.median(signed),
        "ratio": statistics.median(ours / theirs for ours, theirs in zip(signed, bare, strict=True)),
        "records": records,
    }


def main() -> None:
    """Print the measurement, as a sentence or with `--json` as one object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = signing(options.records, options.rounds)
    if options.json:
        print(json.dumps(result))
    else:
        print("signing {records} records: {sign_s:.2f} s, {ratio:.2f} x the {bare_s:.2f} s of bare signing".format(**result))


if __name__ == "__main__":
    main()
