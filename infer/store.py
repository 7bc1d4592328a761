"""Sessions on disk: one SQLite file each, in which a turn is one transaction and forgetting is real."""

import contextlib
import fcntl
import json
import os
import re
import shutil
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import platformdirs

VERSION = 2
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE exchanges (id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, reply TEXT NOT NULL,
    episodic INTEGER NOT NULL, pinned INTEGER NOT NULL DEFAULT 0, made REAL NOT NULL, info TEXT NOT NULL);
CREATE TABLE rules (id INTEGER PRIMARY KEY AUTOINCREMENT, place INTEGER NOT NULL, text TEXT NOT NULL, born INTEGER,
    made REAL NOT NULL, gone_by INTEGER, gone REAL);
CREATE TABLE latents (exchange INTEGER PRIMARY KEY REFERENCES exchanges(id) ON DELETE CASCADE, fingerprint TEXT NOT NULL,
    dtype TEXT NOT NULL, shape TEXT NOT NULL, data BLOB NOT NULL);
"""
_MIGRATIONS = {1: ["ALTER TABLE exchanges ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0"]}  # from version -> statements
_NAME = re.compile(r"[\w][\w .+-]{0,63}")


class StoreError(ValueError):
    """A session that can't be read or written, in one line with the way on."""


@dataclass(frozen=True)
class Exchange:
    """One exchange as stored; `episodic` False if its message says nothing but a rule."""

    id: int
    user: str
    reply: str
    episodic: bool = True
    pinned: bool = False
    made: float = 0.0
    info: dict | None = None


def folder():
    """Where sessions are kept: RHEA_HOME/sessions, or the user's data folder."""
    return Path(os.environ.get("RHEA_HOME") or platformdirs.user_data_dir("rhea_jax")) / "sessions"


def path_of(name):
    """The file of a session.  Raises: StoreError for a name that no file can have."""
    if not _NAME.fullmatch(name) or name.endswith((" ", ".")):
        raise StoreError(f"session {name!r}; allowed: up to 64 letters, digits, blanks and . + - _, beginning with a letter or digit")
    return folder() / f"{name}.sqlite"


def names():
    """(name, time of the last change) of all sessions, the latest first."""
    found = [p for p in folder().glob("*.sqlite") if ".damaged-" not in p.name]
    return sorted(((p.stem, p.stat().st_mtime) for p in found), key=lambda f: -f[1])


class Store:
    """An open session; the file is locked against other processes until it is closed or the process ends."""

    def __init__(self, name, path=None):
        self.name, self.path = name, path or path_of(name)
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = self._take_lock()
        try:
            self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _take_lock(self):
        """A lock on a file beside the session: the system frees it however the process ends."""
        file = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(file, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(file)
            raise StoreError(f"session {self.name!r} is in use by another process (pid {holder}); close it there or take another name") from None
        os.ftruncate(file, 0)
        os.pwrite(file, str(os.getpid()).encode(), 0)
        return file

    def _open(self):
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600))  # never for a moment with a wider mode
        self._db = sqlite3.connect(self.path, isolation_level=None)
        try:
            # A rollback journal, not a WAL: one file at rest, nothing of a deleted text left in a log.
            for pragma in ("journal_mode = DELETE", "secure_delete = ON", "synchronous = FULL", "foreign_keys = ON"):
                self._db.execute(f"PRAGMA {pragma}")
            if (fault := self._db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
                raise sqlite3.DatabaseError(fault.splitlines()[-1])
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version == 0 and not self._db.execute("SELECT 1 FROM sqlite_master").fetchone():
                with self._transaction():
                    for statement in _SCHEMA.split(";\n"):
                        self._db.execute(statement)
                    self._db.execute(f"PRAGMA user_version = {VERSION}")
            elif version not in range(1, VERSION + 1):
                raise StoreError(f"{self.path} has version {version} of the session format; this program reads up to {VERSION}")
            else:
                self._migrate(version)
        except sqlite3.DatabaseError as error:
            self._db.close()
            kept = self.path.with_name(f"{self.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}.sqlite")
            shutil.copy2(self.path, kept)
            kept.chmod(0o400)
            raise StoreError(f"{self.path} is damaged ({error}); a copy is kept as {kept.name}; "
                             f"go on with another session name, or delete the file to begin it anew") from None

    def _migrate(self, version):
        """An older session becomes a current one in one transaction; a copy stands beside it until that is done."""
        for leftover in self.path.parent.glob(f"{self.path.stem}.v[0-9]"):
            leftover.unlink()
        if version == VERSION:
            return
        copy = self.path.with_suffix(f".v{version}")
        shutil.copy2(self.path, copy)
        with self._transaction():
            for step in range(version, VERSION):
                for statement in _MIGRATIONS[step]:
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {VERSION}")
        copy.unlink()

    @contextlib.contextmanager
    def _transaction(self):
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except (sqlite3.OperationalError, OSError) as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise StoreError(f"{self.path} can't be written ({error}); nothing of this step is stored, what was stored is whole") from None
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def copy(self, name):
        """Writes this session, as it is now, as another one.  Raises: StoreError if that one exists."""
        path = path_of(name)
        if path.exists():
            raise StoreError(f"session {name!r} exists; allowed: a new name")
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
        with contextlib.closing(sqlite3.connect(path)) as other:
            self._db.backup(other)

    def close(self):
        """Closes the file and frees the lock."""
        with contextlib.suppress(AttributeError):
            self._db.close()
        with contextlib.suppress(OSError):
            os.close(self._lock)

    # --- reading ---

    def exchanges(self):
        """All exchanges in order."""
        rows = self._db.execute("SELECT id, user, reply, episodic, pinned, made, info FROM exchanges ORDER BY id")
        return [Exchange(i, u, r, bool(e), bool(p), m, json.loads(f)) for i, u, r, e, p, m, f in rows]

    def rules(self):
        """Texts of the rules in force, in their order."""
        return [t for t, in self._db.execute("SELECT text FROM rules WHERE gone IS NULL ORDER BY place, id")]

    def history(self):
        """(text, exchange it came with, exchange that ended it, whether it is in force) of every rule there ever was."""
        return self._db.execute("SELECT text, born, gone_by, gone IS NULL FROM rules ORDER BY id").fetchall()

    def get(self, key):
        """A named value of the session (such as `system`), or None."""
        row = self._db.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
        return None if row is None else json.loads(row[0])

    def latents(self, fingerprint):
        """Exchange id -> latents [W, M, D] in their stored dtype, of those made under this fingerprint."""
        rows = self._db.execute("SELECT exchange, dtype, shape, data FROM latents WHERE fingerprint = ?", (fingerprint,))
        return {e: np.frombuffer(data, _dtype(dtype)).reshape(json.loads(shape)) for e, dtype, shape, data in rows}

    # --- writing ---

    def put(self, key, value):
        """Sets a named value."""
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, json.dumps(value)))

    def commit(self, user, reply, rules, episodic=True, info=None):
        """Stores an exchange and the rules as they are after it, in one transaction."""
        now = time.time()
        with self._transaction() as db:
            i = db.execute("INSERT INTO exchanges (user, reply, episodic, made, info) VALUES (?, ?, ?, ?, ?)",
                           (user, reply, episodic, now, json.dumps(info or {}))).lastrowid
            self._set_rules(db, rules, i, now)
        return Exchange(i, user, reply, episodic, False, now, info or {})

    def set_rules(self, rules):
        """Makes these the rules in force, in this order; what went stays in the history."""
        with self._transaction() as db:
            self._set_rules(db, rules, None, time.time())

    def _set_rules(self, db, rules, exchange, now):
        active = db.execute("SELECT id, text FROM rules WHERE gone IS NULL ORDER BY place, id").fetchall()
        for i, text in active:
            if text not in rules:
                db.execute("UPDATE rules SET gone = ?, gone_by = ? WHERE id = ?", (now, exchange, i))
        held = {text: i for i, text in active}
        for place, text in enumerate(rules):
            if text in held:
                db.execute("UPDATE rules SET place = ? WHERE id = ?", (place, held[text]))
            else:
                db.execute("INSERT INTO rules (place, text, born, made) VALUES (?, ?, ?, ?)", (place, text, exchange, now))

    def undo(self):
        """Deletes the last exchange and brings the rules back as they were before it; None if there is none."""
        if not (every := self.exchanges()):
            return None
        with self._transaction() as db:
            db.execute("DELETE FROM rules WHERE born = ?", (every[-1].id,))
            db.execute("UPDATE rules SET gone = NULL, gone_by = NULL WHERE gone_by = ?", (every[-1].id,))
            db.execute("DELETE FROM exchanges WHERE id = ?", (every[-1].id,))
        self._scrub()
        return every[-1]

    def forget(self, exchange, rules_too=False):
        """Deletes an exchange for good, with its latents, and on request every rule that was born in it."""
        with self._transaction() as db:
            db.execute("DELETE FROM exchanges WHERE id = ?", (exchange,))
            # A rule that is no longer in force would keep the words alive in the history.
            db.execute("DELETE FROM rules WHERE born = ? AND (? OR gone IS NOT NULL)", (exchange, rules_too))
        self._scrub()

    def born(self, exchange):
        """Texts of the rules in force that came with an exchange."""
        return [t for t, in self._db.execute("SELECT text FROM rules WHERE born = ? AND gone IS NULL ORDER BY place", (exchange,))]

    def _scrub(self):
        """Rewrites the file, so that no free page holds what was deleted."""
        try:
            self._db.execute("VACUUM")
        except sqlite3.OperationalError as error:
            raise StoreError(f"{self.path}: deleted, but the file can't be rewritten ({error}); free some space and forget again") from None

    def pin(self, exchange, on=True):
        """Marks an exchange to be recalled raw always, or no longer."""
        with self._transaction() as db:
            db.execute("UPDATE exchanges SET pinned = ? WHERE id = ?", (on, exchange))

    def put_latents(self, exchange, latents_WMD, fingerprint):
        """Keeps the latents of an exchange; doing it again changes nothing."""
        x = np.asarray(latents_WMD)
        with self._transaction() as db:
            db.execute("INSERT OR REPLACE INTO latents VALUES (?, ?, ?, ?, ?)",
                       (exchange, fingerprint, x.dtype.name, json.dumps(x.shape), x.tobytes()))


def _dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name)) if name == "bfloat16" else np.dtype(name)


def delete(name):
    """Deletes a session and everything beside it."""
    with Store(name) as store:
        store._db.close()
        for path in store.path.parent.glob(f"{name}.sqlite*"):
            path.unlink()
    path_of(name).with_suffix(".lock").unlink(missing_ok=True)
