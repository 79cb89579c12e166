"""Mutants of what surrounds a ledger: the files beside it, and whether the one that is open is the one of that name."""

from tests.mutants.mutant import Mutant

PINNED = "ledger/log/pinned.py"
PIN = "dptrain/record/pin.py"
CHECKPOINTS = "dptrain/record/checkpoints.py"
FOLDERS = "dptrain/record/folders.py"
RECORDING = "dptrain/record/recorder.py"
ENGINE = "dptrain/engine/private_training.py"
IN_PLACE = "ledger/storage/disks.py"
SQLITE = "ledger/storage/sql/sqlite.py"
POSTGRES = "ledger/storage/sql/postgres.py"
STORE = "ledger/storage/store.py"
APPENDER = "ledger/storage/appender.py"

T_PINNED = "tests/ledger/test_pinned.py::"
T_IN_PLACE = "tests/ledger/test_storage_in_place.py::"
T_BESIDE = "tests/attacks/test_what_a_resumed_run_reads.py::"
T_TRAINING = "tests/attacks/test_ledger_attacks_training.py::"
T_CHECKPOINTS = "tests/engine/test_checkpoints.py::"

BESIDE = (
    Mutant(
        "a pinned file is signed by the key of its size", PINNED, "keys.at(pin.size)", "keys.current",
        T_PINNED + "test_after_a_change_of_the_key_what_the_old_one_signed_before_it_counts_and_nothing_else",
    ),
    Mutant(
        "a retired key signs nothing later", PINNED, "keys.at(pin.size)", "keys.vkeys[0]",
        T_PINNED + "test_after_a_change_of_the_key_what_the_old_one_signed_before_it_counts_and_nothing_else",
    ),
    Mutant(
        "a pinned file is of one kind", PINNED, "if found != kind or type(found) is not str:", "if type(found) is not str:",
        T_PINNED + "test_a_file_of_another_kind_is_refused_though_the_key_signed_it",
    ),
    Mutant(
        "a pinned file is of this ledger's past", "ledger/log/ledger.py",
        "        self.check_pin(pin)\n        return pin, values", "        return pin, values",
        T_PINNED + "test_a_past_that_the_ledger_lacks_is_refused",
    ),
    Mutant(
        "the states are those that the pin names", PIN, "if found != record.state_sha256:", "if not found:",
        T_CHECKPOINTS + "test_no_byte_of_changed_states_is_parsed",
    ),
    Mutant(
        "the file that is loaded is the one that was digested", CHECKPOINTS,
        "torch.load(file, map_location", "torch.load(path / STATE, map_location",
        T_CHECKPOINTS + "test_what_is_loaded_is_the_file_that_was_digested",
    ),
    Mutant(
        "states are no code", CHECKPOINTS,
        "torch.load(file, map_location=\"cpu\", weights_only=True)",
        "torch.load(file, map_location=\"cpu\", weights_only=False)",
        T_CHECKPOINTS + "test_states_are_loaded_as_weights_alone",
    ),
    Mutant(
        "a checkpoint has the name of its step", PIN, "if folder.name != folder_name(record.step):", "if not folder.name:",
        T_BESIDE + "test_a_checkpoint_that_is_swapped_signed_anew_or_not_whole_is_refused",
    ),
    Mutant(
        "a checkpoint's files are its owner's alone", FOLDERS, "        os.fchmod(descriptor, 0o600)\n", "",
        T_CHECKPOINTS + "test_a_checkpoint_is_for_its_owner_alone_whatever_the_umask",
    ),
    Mutant(
        "a checkpoint's directories are its owner's alone", "attest/files.py", "    os.chmod(path, 0o700)\n", "",
        T_CHECKPOINTS + "test_a_checkpoint_is_for_its_owner_alone_whatever_the_umask",
    ),
    Mutant(
        "the keys of earlier draws are signed", "dptrain/engine/draw.py", "except (LedgerError, FileRefused) as error:",
        "except LedgerError:\n            return {0: bytes(32)}\n        except FileRefused as error:",
        T_BESIDE + "test_the_keys_of_earlier_draws_are_those_that_the_run_wrote",
    ),
    Mutant(
        "the corpus owner stays the same", RECORDING,
        '        ("key of the corpus owner", found.owner_key, header.owner_key),\n', "",
        T_BESIDE + "test_an_owner_who_is_put_in_the_place_of_the_corpus_owner_is_refused",
    ),
    Mutant(
        "the inbox is there before the first charge", ENGINE, "                inbox.make()\n", "                pass\n",
        T_TRAINING + "test_B22_a_withdrawal_that_lies_there_before_the_first_charge_is_in_no_pool_at_all",
    ),
)

IN_THEIR_PLACE = (
    Mutant(
        "device and inode are those of the open file", IN_PLACE,
        "if _identity(self._status(suffix)) != self._identity[suffix]:", "if not _identity(self._status(suffix)):",
        T_IN_PLACE + "test_a_lost_file_is_seen_and_all_of_it_is_copied_beside",
    ),
    Mutant(
        "the log and its index are asked for too", IN_PLACE, "FILES: Final = (DATABASE, LOG, INDEX)",
        "FILES: Final = (DATABASE,)", T_IN_PLACE + "test_a_lost_file_is_seen_and_all_of_it_is_copied_beside",
    ),
    Mutant(
        "a shorter log is seen", IN_PLACE, "if now[LOG][0] < self._left[LOG][0]:", "if now[LOG][0] < 0:",
        T_IN_PLACE + "test_a_truncated_file_is_seen",
    ),
    Mutant(
        "a commit counts in a file that has its name", SQLITE,
        "            yield connection\n        if self._files is not None:\n            self._files.leave()\n",
        "            yield connection\n",
        T_IN_PLACE + "test_a_commit_into_a_file_that_lost_its_name_meanwhile_is_no_charge",
    ),
    Mutant(
        "what others wrote is read past the cache", SQLITE,
        '            self._driver().execute("PRAGMA shrink_memory")\n', "",
        T_IN_PLACE + "test_one_changed_byte_of_an_old_leaf_is_seen_at_the_next_charge",
    ),
    Mutant(
        "indexes are looked at too", SQLITE, "if wrong := _wrong_pages(connection):", "if wrong := [\"\"][1:]:",
        T_IN_PLACE + "test_pages_that_hold_no_leaf_are_looked_at_too",
    ),
    Mutant(
        "what is still in memory is copied before it is forgotten", SQLITE,
        "        self._rescued = self._copy()\n        try:", "        try:",
        T_IN_PLACE + "test_an_older_copy_written_over_the_file_is_seen",
    ),
    Mutant(
        "the tables are those that were opened", POSTGRES, "if found != self._identity:", "if not found:",
        T_IN_PLACE + "test_a_schema_that_is_gone_or_another_is_seen_by_all_that_writes",
    ),
    Mutant(
        "the head is the one that was left", STORE,
        "if left is not None and (found.size, found.frontier) != (left.size, left.to_bytes()):", "if found.size < 0:",
        T_IN_PLACE + "test_a_backup_that_another_writer_brought_to_the_same_size_is_seen",
    ),
    Mutant(
        "a lost ledger is told once and for all", APPENDER,
        "        file._broken = True\n        sentence = (", "        sentence = (",
        T_IN_PLACE + "test_whatever_writes_or_ends_a_run_asks",
    ),
    Mutant(
        "an export asks", "ledger/log/ledger.py",
        "        self.require_in_place()\n        known = None if registry", "        known = None if registry",
        T_IN_PLACE + "test_whatever_writes_or_ends_a_run_asks",
    ),
    Mutant(
        "closing asks", ENGINE,
        "            self.opened.recorder.require_in_place()\n        finally:", "            pass\n        finally:",
        T_TRAINING + "test_closing_tells_of_a_ledger_that_was_lost_and_an_error_before_it_is_not_hidden",
    ),
)
