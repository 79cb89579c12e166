"""Mutants of what a ledger keeps and exports of what contributors signed."""

from tests.mutants.mutant import Mutant

KEPT = "ledger/leaves/attestations.py"
EXPORT = "ledger/export.py"
STATEMENTS = "ledger/storage/sql/statements.py"
SIGNED = "ledger/log/examining.py"

T = "tests/ledger/test_attestations.py::"

ATTESTED = (
    Mutant(
        "a leaf quotes the message that is kept", KEPT, "if digest != leaf.attestation_hash:", "if not digest:",
        T + "test_an_attestation_that_is_not_what_its_leaf_quotes_is_refused_before_anything_is_written",
    ),
    Mutant(
        "a leaf quotes the descriptor that is kept", KEPT, "if digest != leaf.descriptor_hash:", "if not digest:",
        T + "test_a_leaf_that_quotes_something_else_than_was_signed_is_refused",
    ),
    Mutant(
        "a signature has 64 bytes", KEPT, "if len(signature) != SIGNATURE_SIZE:", "if not len(signature) >= 0:",
        T + "test_a_leaf_that_quotes_a_message_with_a_signature_of_another_length_is_refused",
    ),
    Mutant(
        "an attestation goes with the leaves that it was queued with", "ledger/storage/appender.py",
        "self._staged, self._attested = StagedRows(), StagedAttested()", "self._staged = StagedRows()",
        T + "test_a_refused_admission_leaves_no_attestation_for_the_next_leaves",
    ),
    Mutant(
        "pruning takes the attestation with the body", STATEMENTS, ".where(signed)", ".where(signed & sa.false())",
        T + "test_no_byte_of_a_pruned_attestation_is_left_in_the_file",
    ),
    Mutant(
        "pruning empties terms that nobody needs, in SQLite", STATEMENTS,
        "if forgotten and (unused", "if not forgotten and (unused",
        T + "test_no_byte_of_a_pruned_attestation_is_left_in_the_file",
    ),
    Mutant(
        "pruning empties terms that nobody needs, in both", STATEMENTS,
        "if forgotten and (unused", "if not forgotten and (unused",
        T + "test_pruning_takes_the_attestation_with_the_body_and_empties_terms_that_nobody_needs",
    ),
    Mutant(
        "terms are stored once", STATEMENTS, "for data in keys.values() if data not in numbers]", "for data in keys.values()]",
        T + "test_attestations_are_stored_with_their_leaves_and_terms_once",
    ),
    Mutant(
        "an export has the attestations of all or of none", EXPORT,
        "                return False\n            entries", "                admitted = False\n            entries",
        T + "test_an_export_has_the_attestations_of_all_or_of_none",
    ),
    Mutant(
        "terms are numbered by their first use in the export", EXPORT,
        "return pack(place, signature)", "return pack(number, signature)",
        T + "test_terms_are_numbered_by_first_use_where_pruning_took_an_earlier_one",
    ),
    Mutant(
        "the registry of an export has the state that admitted", EXPORT,
        "    if missing:\n        sentence", "    if not found:\n        sentence",
        T + "test_a_registry_that_is_not_that_of_the_run_is_refused_and_nothing_is_written",
    ),
    Mutant(
        "attestations are left out where that is asked for", "ledger/log/ledger.py",
        "snapshot if attestations else None", "snapshot",
        T + "test_an_export_without_attestations_has_no_byte_of_them",
    ),
    Mutant(
        "fsck names terms that nobody needs", SIGNED, "if data and number not in self.used:", "if not number >= 0:",
        T + "test_what_was_changed_around_the_triggers_is_found_by_fsck",
    ),
    Mutant(
        "a run keeps what was signed", "dptrain/record/recorder.py",
        "anchor, *limits, (terms, signature))", "anchor, *limits)",
        "tests/engine/test_what_a_run_exports.py::test_a_resumed_run_adds_nothing_to_what_is_kept",
    ),
    Mutant(
        "what admissions share is of one key", "attest/gate/admission.py", "key = (admission.key_id, *_in_common(descriptor))",
        "key = (descriptor.contributor,)",
        "tests/attest/test_framing.py::test_what_the_gate_admitted_is_made_again_from_its_admission",
    ),
)  # fmt: skip
