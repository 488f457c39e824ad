"""Run scripts that a model wrote on a private in-memory copy of a SQLite database.

Nothing reaches a file: every action is checked against a list of allowed ones, and all else is refused. Limits of
SQLite bound what single statements may cost; time is checked inside for the usual case, and from outside for the rest.
"""

import json
import re
import sqlite3
import time
import urllib.parse

PROGRESS_OPS = 5000
# What a statement may do; numbers of SQLite's C interface (Python names only some of them).
SELECT, READ, FUNCTION, RECURSIVE, PRAGMA = 21, 20, 31, 33, 19
WRITES = {
    **{1: "CREATE INDEX", 2: "CREATE TABLE", 3: "CREATE TEMP INDEX", 4: "CREATE TEMP TABLE", 5: "CREATE TEMP TRIGGER"},
    **{6: "CREATE TEMP VIEW", 7: "CREATE TRIGGER", 8: "CREATE VIEW", 9: "DELETE", 10: "DROP INDEX", 11: "DROP TABLE"},
    **{12: "DROP TEMP INDEX", 13: "DROP TEMP TABLE", 14: "DROP TEMP TRIGGER", 15: "DROP TEMP VIEW"},
    **{16: "DROP TRIGGER", 17: "DROP VIEW", 18: "INSERT", 22: "TRANSACTION", 23: "UPDATE", 26: "ALTER TABLE"},
    **{27: "REINDEX", 28: "ANALYZE", 32: "SAVEPOINT"},
}
# Asked for when SQLite declares a table-valued function to itself. A statement that does it fails all the same, as the
# pragma that would let it is refused.
SCHEMA_UPDATE = (23, "sqlite_master")
NEVER = {24: "ATTACH", 25: "DETACH", 29: "CREATE VIRTUAL TABLE", 30: "DROP VIRTUAL TABLE"}
PRAGMAS = {"table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list"}
REFUSED_FUNCTIONS = {"load_extension", "fts3_tokenizer", "readfile", "writefile", "edit"}
# Virtual tables that are there without being created, and show or change what is below the tables.
REFUSED_TABLES = {"sqlite_dbpage", "sqlite_stmt", "dbstat", "fts3tokenize", "bytecode", "tables_used", "sqlite_dbdata"}
SQLITE_LIMITS = {
    0: 10_000_000,  # LENGTH of a string, blob or row, bytes
    1: 100_000,  # SQL_LENGTH, bytes
    3: 100,  # EXPR_DEPTH
    4: 50,  # COMPOUND_SELECT
    5: 25_000,  # VDBE_OP
    7: 0,  # ATTACHED
    8: 200,  # LIKE_PATTERN_LENGTH, bytes
    10: 10,  # TRIGGER_DEPTH
    11: 0,  # WORKER_THREADS
}
SQL_BYTES = SQLITE_LIMITS[1]
_TOKEN = re.compile(
    r"""--[^\n]*|/\*.*?(?:\*/|\Z)|'[^']*(?:''[^']*)*(?:'|\Z)|"[^"]*(?:""[^"]*)*(?:"|\Z)"""
    r"""|`[^`]*(?:``[^`]*)*(?:`|\Z)|\[[^\]]*(?:\]|\Z)|\w+|\s+|.""",
    re.DOTALL,
)


def tokens(script):
    """Yield (start, text) of strings, quoted names, words and single characters; comments and blanks are left out."""
    for match in _TOKEN.finditer(script):
        text = match.group()
        if not text.isspace() and not text.startswith(("--", "/*")):
            yield match.start(), text


def statements(script):
    """Split a script at semicolons outside of strings, comments and trigger bodies; empty statements are left out."""
    found, start, words, depth = [], None, [], 0
    for at, text in tokens(script):
        if start is None:
            if text == ";":
                continue
            start, words, depth = at, [], 0
        word = text.upper()
        if len(words) < 3:
            words.append(word)
        if words[0] == "CREATE" and "TRIGGER" in words[1:]:
            depth += {"BEGIN": 1, "CASE": 1, "END": -1}.get(word, 0)
        if text == ";" and depth <= 0:
            found.append(script[start:at])
            start = None
    return found if start is None else [*found, script[start:]]


class TooLarge(Exception):
    """A result has more rows or bytes than an answer may."""


class Handler:
    """One episode: a database of its own.

    Args:
        setup: `cpu_s`, `max_rows`, `max_bytes`, `heap_bytes`; `writable` for scripts that may change the copy.
        files: `database`, path of the template.
    """

    def __init__(self, setup, files):
        self.setup = setup
        self.refusal = ""
        self.deadline = float("inf")
        self.late = False
        self.database = sqlite3.connect(":memory:", isolation_level=None, cached_statements=0)
        self.database.text_factory = lambda data: data.decode("utf-8", "replace")
        path = urllib.parse.quote(files["database"])
        template = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        template.backup(self.database)
        template.close()
        self._lock_down()

    def _lock_down(self):
        """Set everything that the authorizer forbids to set later."""
        for pragma in ("trusted_schema=OFF", "temp_store=MEMORY", "recursive_triggers=OFF", "mmap_size=0"):
            self.database.execute(f"PRAGMA {pragma}").fetchall()
        self.database.execute(f"PRAGMA hard_heap_limit={int(self.setup['heap_bytes'])}").fetchall()
        if hasattr(self.database, "setlimit"):  # Python 3.11; before it, time and memory limits have to do
            for category, value in SQLITE_LIMITS.items():
                self.database.setlimit(category, value)
        self.database.set_authorizer(self._authorize)
        self.database.set_progress_handler(self._progress, PROGRESS_OPS)

    def _authorize(self, action, first, second, database, source):
        refusal = self._refuse(action, (first or "").lower(), (second or "").lower())
        if refusal:
            self.refusal = self.refusal or refusal
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    def _refuse(self, action, first, second):
        """Words for what is not allowed, "" for what is."""
        if action == PRAGMA:
            return "" if first in PRAGMAS else f"PRAGMA {first}"
        if action == FUNCTION:
            return f"function {second}" if second in REFUSED_FUNCTIONS else ""
        if action == READ:
            return f"table {first}" if first in REFUSED_TABLES else ""
        if action in (SELECT, RECURSIVE):
            return ""
        if action in WRITES and (self.setup.get("writable") or (action, first) == SCHEMA_UPDATE):
            return ""
        return {**WRITES, **NEVER}.get(action, f"action {action}")

    def _progress(self):
        self.late = self.late or time.process_time() > self.deadline
        return 1 if self.late else 0

    def handle(self, request):
        """Run `sql`; answer with status, columns and rows of the last statement that has any, and an error text."""
        self.refusal, self.late = "", False
        self.deadline = time.process_time() + self.setup["cpu_s"]
        answer = {"status": "ok", "columns": None, "rows": [], "error": ""}
        script = request["sql"]
        try:
            if len(script.encode("utf-8", "replace")) > SQL_BYTES:
                raise sqlite3.DataError(f"a script must be at most {SQL_BYTES} bytes long")
            for statement in statements(script):
                self._run(statement, answer)
        except TooLarge:
            answer.update(status="output_limit", error="the result is too large, it was cut")
        except MemoryError:
            answer.update(status="memory_limit", error="out of memory")
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError) as error:
            answer.update(self._failure(error))
        if answer["status"] not in ("ok", "output_limit"):
            answer.update(columns=None, rows=[])
        return answer

    def _failure(self, error):
        if self.refusal:
            return {"status": "security_violation", "error": f"not allowed: {self.refusal}"}
        if self.late:
            return {"status": "time_limit", "error": "the query took too long"}
        return {"status": "runtime_error", "error": str(error)}

    def _run(self, statement, answer):
        """Execute one statement; its rows replace those of the one before."""
        cursor = self.database.execute(statement)
        if cursor.description is None:
            return
        answer.update(columns=[column[0] for column in cursor.description], rows=[])
        left = self.setup["max_bytes"]
        for row in cursor:
            left -= sum(cost(value) for value in row)
            if len(answer["rows"]) >= self.setup["max_rows"] or left < 0:
                cursor.close()
                raise TooLarge
            answer["rows"].append([to_json(value) for value in row])


def cost(value):
    """Bytes that a value takes in the answer, nearly."""
    if isinstance(value, str):
        return len(json.dumps(value))
    return 2 * len(value) + 12 if isinstance(value, bytes) else 24


def to_json(value):
    """Turn a value of SQLite into JSON: {"blob": hex} and {"float": "inf"} are what JSON lacks."""
    if isinstance(value, bytes):
        return {"blob": value.hex()}
    if isinstance(value, float) and value - value != 0.0:
        return {"float": repr(value)}
    return value
