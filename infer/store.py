"""Sessions on disk: one SQLite file each, in which a turn is one transaction and forgetting is real."""

import contextlib
import difflib
import fcntl
import filecmp
import glob
import json
import os
import shutil
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

import ml_dtypes
import numpy as np
import platformdirs

from rhea_jax.text import clean

VERSION = 2
_SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE exchanges (id INTEGER PRIMARY KEY AUTOINCREMENT, user TEXT NOT NULL, reply TEXT NOT NULL,
    episodic INTEGER NOT NULL, pinned INTEGER NOT NULL DEFAULT 0, made REAL NOT NULL, info TEXT NOT NULL);
CREATE TABLE rules (id INTEGER PRIMARY KEY AUTOINCREMENT, place INTEGER NOT NULL, text TEXT NOT NULL,
    born INTEGER, made REAL NOT NULL, gone_by INTEGER, gone REAL);
CREATE TABLE latents (exchange INTEGER PRIMARY KEY REFERENCES exchanges(id) ON DELETE CASCADE,
    fingerprint TEXT NOT NULL, dtype TEXT NOT NULL, shape TEXT NOT NULL, data BLOB NOT NULL);
"""
_TABLES = ("meta", "exchanges", "rules", "latents")
_MIGRATIONS = {1: ["ALTER TABLE exchanges ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0"]}  # by version left
_PRAGMAS = (
    "journal_mode = DELETE",  # not a WAL: one file at rest, nothing of a deleted text left in a log
    "synchronous = EXTRA",  # FULL, and the commit, which is a removed journal, outlives a power cut
    "secure_delete = ON",
    "temp_store = MEMORY",  # VACUUM would write the whole session into a temporary file elsewhere
    "foreign_keys = ON",
)


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


@dataclass(frozen=True)
class Rule:
    """One rule that is or was in force; an exchange of None is a change by hand."""

    text: str
    born: int | None = None
    made: float = 0.0
    gone_by: int | None = None
    gone: float | None = None


def folder():
    """Where sessions are kept: RHEA_HOME/sessions, or the user's data folder."""
    return Path(os.environ.get("RHEA_HOME") or platformdirs.user_data_dir("rhea_jax")) / "sessions"


def path_of(name):
    """The file of a session.  Raises: StoreError for a name that no file can have."""
    fits = 1 <= len(name) <= 64 and name.isprintable() and len(name.encode()) <= 200
    if not fits or set(name) & set('/\\:*?"<>|') or name.strip(" .") != name or ".damaged-" in name:
        raise StoreError(f"session {name!r}; allowed: 1 to 64 printable characters (200 bytes) without "
                         "/ \\ : * ? \" < > |, no dot or blank at the ends, no '.damaged-'")
    return folder() / f"{name}.sqlite"


def names():
    """(name, time of the last change) of all sessions, the latest first."""
    found = [p for p in folder().glob("*.sqlite") if ".damaged-" not in p.name]
    return sorted(((p.stem, p.stat().st_mtime) for p in found), key=lambda f: -f[1])


def delete(name):
    """Deletes a session, sound or damaged, with all its copies.  Raises: StoreError if there is none."""
    path = path_of(name)
    if not path.exists():
        raise StoreError(f"session {name!r} does not exist in {path.parent}")
    with _as_store_error(path, "deleted"):
        lock = _take_lock(path, name)
        for pattern in ("sqlite", "sqlite-*", "v[0-9]", "part", "damaged-*.sqlite", "lock"):  # the lock last
            for file in path.parent.glob(f"{glob.escape(name)}.{pattern}"):
                file.unlink()
        os.close(lock)


class Store:
    """An open session; the file is locked against other processes until it is closed or the process ends.

    Raises: StoreError, here and from every method, in one line; what was stored before is whole then.
    """

    def __init__(self, name, path=None, create=True):
        self.name, self.path = name, path or path_of(name)
        self._db = self._lock = None
        if not create and not self.path.exists():
            raise StoreError(f"session {name!r} does not exist in {self.path.parent}")
        try:
            with _as_store_error(self.path, "opened"):
                self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                if path is None:
                    self.path.parent.chmod(0o700)
                self._lock = _take_lock(self.path, name)
                self._open()
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        """Closes the file and frees the lock."""
        if self._db:
            self._db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _open(self):
        file = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)  # never for a moment with a wider mode
        os.fchmod(file, 0o600)
        os.close(file)
        self._db = sqlite3.connect(self.path, isolation_level=None, timeout=1)
        try:
            self._check()
        except sqlite3.DatabaseError as error:
            raise self._refusal(error) from None
        for leftover in ("part", *(f"v{n}" for n in range(1, VERSION))):  # of a process that was killed
            self.path.with_suffix(f".{leftover}").unlink(missing_ok=True)
        if self.get("unscrubbed"):
            self.scrub()

    def _check(self):
        """Makes a new file a session, an older session a current one; reads it all, so that damage shows."""
        version = self._db.execute("PRAGMA user_version").fetchone()[0]
        tables = {t for t, in self._db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if version > VERSION and "exchanges" in tables:
            raise StoreError(f"{self.path} has version {version} of the session format; "
                             f"this program reads up to {VERSION}")
        if tables and (version not in range(1, VERSION + 1) or not tables.issuperset(_TABLES)):
            raise StoreError(f"{self.path} is a database of another program; allowed: a session of rhea_jax")
        for pragma in _PRAGMAS:
            self._db.execute(f"PRAGMA {pragma}")
        if (fault := self._db.execute("PRAGMA quick_check(1)").fetchone()[0]) != "ok":
            raise sqlite3.DatabaseError(fault.splitlines()[-1])
        for table in _TABLES[:3] if tables else ():  # no check of pages finds a text that is no text
            self._db.execute(f"SELECT * FROM {table}").fetchall()
        if not tables:
            with self.transaction() as db:
                for statement in _SCHEMA.split(";\n"):
                    db.execute(statement)
                db.execute("INSERT INTO meta VALUES ('created', ?)", (json.dumps(time.time()),))
                db.execute(f"PRAGMA user_version = {VERSION}")
        elif version < VERSION:
            self._migrate(version)

    def _migrate(self, version):
        """Makes an older session a current one in one transaction; a copy is kept until that is done."""
        copy = self.path.with_suffix(f".v{version}")
        copy.unlink(missing_ok=True)
        _copy(self.path, copy, 0o600)
        with self.transaction() as db:
            for statement in (s for step in range(version, VERSION) for s in _MIGRATIONS[step]):
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {VERSION}")

    def _refusal(self, error):
        """The error for a file that SQLite does not take; of a damaged one, a copy is kept, once."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
        self._db.close()
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreError(f"{self.path} is locked by another program ({error}); "
                              "close it there and open the session again")
        if code not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StoreError(f"{self.path} can't be opened ({error}); what was stored is whole")
        copies = self.path.parent.glob(f"{glob.escape(self.path.stem)}.damaged-*.sqlite")
        kept = next((c for c in copies if filecmp.cmp(c, self.path, shallow=False)), None)
        if kept is None:
            kept = self.path.with_suffix(f".damaged-{time.strftime('%Y%m%d-%H%M%S')}.sqlite")
            _copy(self.path, kept, 0o400)
        return StoreError(f"{self.path} is damaged ({error}); a copy is kept as {kept.name}; "
                          "go on with another session name, or delete the file to begin it anew")

    @contextlib.contextmanager
    def transaction(self):
        """Makes all changes inside it one step: stored together or not at all."""
        if self._db.in_transaction:
            yield self._db
            return
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            if not isinstance(error, (sqlite3.Error, OSError)):
                raise
            raise StoreError(f"{self.path} can't be written ({error}); nothing of this step is stored, "
                             "what was stored is whole") from None

    def copy(self, name):
        """Writes this session, as it is now, as another one.  Raises: StoreError if that one exists."""
        path = path_of(name)
        with _as_store_error(path, "written"), contextlib.ExitStack() as stack:
            stack.callback(os.close, _take_lock(path, name))
            if path.exists():
                raise StoreError(f"session {name!r} exists; allowed: a new name")
            part = path.with_suffix(".part")
            stack.callback(part.unlink, missing_ok=True)
            file = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            stack.callback(os.close, file)
            self._db.execute("VACUUM INTO ?", (str(part),))
            os.fsync(file)
            part.replace(path)

    # --- reading ---

    def _rows(self, sql, *values):
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.Error as error:
            raise StoreError(f"{self.path} can't be read ({error}); open the session again") from None

    def exchanges(self):
        """All exchanges in order."""
        rows = self._rows("SELECT id, user, reply, episodic, pinned, made, info FROM exchanges ORDER BY id")
        return [Exchange(i, u, r, bool(e), bool(p), m, json.loads(f)) for i, u, r, e, p, m, f in rows]

    def next_id(self):
        """The number that the next exchange will have; no number is ever given twice."""
        row = self._rows("SELECT seq FROM sqlite_sequence WHERE name = 'exchanges'")
        return (row[0][0] if row else 0) + 1

    def rules(self):
        """Texts of the rules in force, in their order."""
        return [t for t, in self._rows("SELECT text FROM rules WHERE gone IS NULL ORDER BY place, id")]

    def history(self):
        """(text, exchange it came with, exchange that ended it, whether in force) of every rule ever."""
        return self._rows("SELECT text, born, gone_by, gone IS NULL FROM rules ORDER BY id")

    def every_rule(self):
        """All rules there ever were, in their places, as `fill` takes them."""
        rows = self._rows("SELECT text, born, made, gone_by, gone FROM rules ORDER BY place, id")
        return [Rule(*row) for row in rows]

    def born(self, exchange):
        """Texts of the rules in force that came with an exchange."""
        self._find(exchange)
        rows = self._rows("SELECT text FROM rules WHERE gone IS NULL AND text IN "
                          "(SELECT text FROM rules WHERE born = ?) ORDER BY place, id", exchange)
        return [t for t, in rows]

    def get(self, key):
        """A named value of the session (such as `system`), or None."""
        rows = self._rows("SELECT value FROM meta WHERE key = ?", key)
        return json.loads(rows[0][0]) if rows else None

    def latents(self, fingerprint):
        """Exchange id -> latents [W, M, D] in their stored dtype, of those made under this fingerprint."""
        rows = self._rows("SELECT exchange, data, dtype, shape FROM latents WHERE fingerprint = ?",
                          fingerprint)
        return {e: np.frombuffer(x, _dtype(name)).reshape(json.loads(shape)) for e, x, name, shape in rows}

    def _find(self, exchange):
        if exchange not in {i for i, in self._rows("SELECT id FROM exchanges")}:
            raise StoreError(f"exchange {exchange} is not in session {self.name!r}")

    # --- writing ---

    def put(self, key, value):
        """Sets a named value."""
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, _dumps(value)))

    def commit(self, user, reply, rules, episodic=True, info=None):
        """Stores an exchange and the rules as they are after it, in one transaction."""
        user, reply, now, info = clean(user), clean(reply), time.time(), _dumps(info or {})
        with self.transaction() as db:
            i = db.execute("INSERT INTO exchanges (user, reply, episodic, made, info) "
                           "VALUES (?, ?, ?, ?, ?)", (user, reply, episodic, now, info)).lastrowid
            self._set_rules(db, rules, i, now)
        return Exchange(i, user, reply, bool(episodic), False, now, json.loads(info))

    def fill(self, exchanges, rules):
        """Stores whole exchanges and rules as another session had them, with their ids and times."""
        with self.transaction() as db:
            db.executemany("INSERT INTO exchanges VALUES (?, ?, ?, ?, ?, ?, ?)",
                           [(e.id, clean(e.user), clean(e.reply), e.episodic, e.pinned, e.made,
                             _dumps(e.info or {})) for e in exchanges])
            db.executemany("INSERT INTO rules (place, text, born, made, gone_by, gone) "
                           "VALUES (?, ?, ?, ?, ?, ?)",
                           [(n, clean(r.text), r.born, r.made, r.gone_by, r.gone)
                            for n, r in enumerate(rules)])
            # A rule may name an exchange that was forgotten; no later one may get its number.
            used = [*(e.id for e in exchanges), *(i or 0 for r in rules for i in (r.born, r.gone_by)), 0]
            db.execute("DELETE FROM sqlite_sequence WHERE name = 'exchanges'")
            db.execute("INSERT INTO sqlite_sequence VALUES ('exchanges', ?)", (max(used),))

    def set_rules(self, rules):
        """Makes these the rules in force, in this order, by hand; what went stays in the history."""
        with self.transaction() as db:
            self._set_rules(db, rules, None, time.time())

    def _set_rules(self, db, rules, exchange, now):
        """A rule that went keeps its place, where undo finds it; one that moved went and came anew."""
        rows = db.execute("SELECT id, text, gone FROM rules ORDER BY place, id").fetchall()
        order, active = [i for i, _, _ in rows], [(i, text) for i, text, gone in rows if gone is None]
        rules = [clean(rule) for rule in rules]
        changes = difflib.SequenceMatcher(None, [text for _, text in active], rules, autojunk=False)
        for tag, a, b, c, d in changes.get_opcodes():
            if tag == "equal":
                continue
            for i, _ in active[a:b]:
                db.execute("UPDATE rules SET gone = ?, gone_by = ? WHERE id = ?", (now, exchange, i))
            at = order.index(active[b - 1][0]) + 1 if b else 0
            order[at:at] = [db.execute("INSERT INTO rules (place, text, born, made) VALUES (0, ?, ?, ?)",
                                       (text, exchange, now)).lastrowid for text in rules[c:d]]
        db.executemany("UPDATE rules SET place = ? WHERE id = ?", list(enumerate(order)))

    def pin(self, exchange, on=True):
        """Marks an exchange to be recalled raw always, or no longer."""
        self._find(exchange)
        with self.transaction() as db:
            db.execute("UPDATE exchanges SET pinned = ? WHERE id = ?", (on, exchange))

    def put_latents(self, exchange, latents_WMD, fingerprint):
        """Keeps the latents of an exchange; doing it again changes nothing."""
        self._find(exchange)
        x = np.asarray(latents_WMD)
        data = x.astype(_dtype(x.dtype.name)).tobytes()  # a name says nothing of byte order
        with self.transaction() as db:
            db.execute("INSERT OR REPLACE INTO latents VALUES (?, ?, ?, ?, ?)",
                       (exchange, fingerprint, x.dtype.name, json.dumps(x.shape), data))

    # --- deleting ---

    def undo(self):
        """Deletes the last exchange and brings the rules back as they were before it; None if there is none.

        What was changed by hand since then stays.
        """
        if not (every := self.exchanges()):
            return None
        last = every[-1]
        by_hand = "SELECT text FROM rules WHERE gone IS NULL AND born IS NULL AND made >= ?"
        revive = f"UPDATE rules SET gone = NULL, gone_by = NULL WHERE gone_by = ? AND text NOT IN ({by_hand})"
        self._delete(("DELETE FROM rules WHERE born = ?", last.id),
                     (revive, last.id, last.made),
                     ("DELETE FROM exchanges WHERE id = ?", last.id))
        return last

    def forget(self, exchange, rules_too=False):
        """Deletes an exchange for good, with its latents, and on request every rule that was born in it.

        Returns its rules that stay in force; the others go in any case: history would keep their words.
        """
        self._find(exchange)
        left, born = [] if rules_too else self.born(exchange), "SELECT text FROM rules WHERE born = ?"
        purge = f"DELETE FROM rules WHERE (? OR gone IS NOT NULL) AND text IN ({born})"
        self._delete(("DELETE FROM exchanges WHERE id = ?", exchange), (purge, rules_too, exchange))
        return left

    def purge_rules(self, texts):
        """Deletes these rules for good, in force or not."""
        self._delete(*(("DELETE FROM rules WHERE text = ?", clean(text)) for text in texts))

    def _delete(self, *statements):
        """Deletes in one transaction and scrubs; the mark makes the next opening scrub if this can't."""
        with self.transaction() as db:
            for sql, *values in statements:
                db.execute(sql, values)
            db.execute("INSERT OR REPLACE INTO meta VALUES ('unscrubbed', 'true')")
        self.scrub()

    def scrub(self):
        """Rewrites the file, so that no page holds anything else; what went is zeroed already.

        On a full disk `get("unscrubbed")` stays true; what was deleted is deleted, so that is no error.
        """
        with contextlib.suppress(sqlite3.OperationalError):
            self._db.execute("VACUUM")
            self._db.execute("DELETE FROM meta WHERE key = 'unscrubbed'")


def _take_lock(path, name):
    """A lock on a file beside the session: the system frees it however the process ends."""
    path = path.with_suffix(".lock")
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(file), os.stat(path)):  # else it was deleted meanwhile
                with contextlib.suppress(OSError):  # the number is a courtesy, and the disk may be full
                    os.pwrite(file, f"{os.getpid():<20}".encode(), 0)
                return file
            os.close(file)
        except FileNotFoundError:
            os.close(file)
        except BlockingIOError:
            holder = os.pread(file, 20, 0).decode(errors="replace").strip() or "unknown"
            os.close(file)
            by = f"in use by another process (pid {holder})"
            by = "open already" if holder == str(os.getpid()) else by
            raise StoreError(f"session {name!r} is {by}; close it there or take another name") from None


@contextlib.contextmanager
def _as_store_error(path, done):
    try:
        yield
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path} can't be {done} ({getattr(error, 'strerror', None) or error})") from None


def _copy(source, target, mode):
    """Copies a file that never has a wider mode than this; nothing half written stays."""
    try:
        made = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with open(made, "wb") as out, open(source, "rb") as file:
            shutil.copyfileobj(file, out)
            out.flush()
            os.fsync(out.fileno())
    except OSError:
        target.unlink(missing_ok=True)
        raise


def _dumps(value):
    return clean(json.dumps(value, ensure_ascii=False))


def _dtype(name):
    return np.dtype(getattr(ml_dtypes, name, name))
