"""Results kept by content: the key says everything that a result depends on, so none is ever stale.

One SQLite file in the cache folder; rows that were not read for months are dropped.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import threading
import time
from pathlib import Path
from typing import Any

KEPT_DAYS = 120
DAY = 86400


def key(*parts: Any) -> str:
    """A digest of what a result depends on."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class Store:
    """Values by key, shared by threads and processes."""

    def __init__(self, path: Path | str):
        if isinstance(path, Path):
            path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = threading.Lock()
        self._base = sqlite3.connect(path, timeout=60, check_same_thread=False)
        with self._lock, self._base:
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS kept (key TEXT PRIMARY KEY, value TEXT, used INTEGER)"
            )
            oldest = int(time.time()) // DAY - KEPT_DAYS
            self._base.execute("DELETE FROM kept WHERE used < ?", (oldest,))

    def get(self, key: str) -> Any:
        """What was kept under a key, or None."""
        today = int(time.time()) // DAY
        with self._lock, self._base:
            row = self._base.execute("SELECT value, used FROM kept WHERE key = ?", (key,))
            stored_row = row.fetchone()
            if stored_row is None:
                return None
            if stored_row[1] != today:
                self._base.execute("UPDATE kept SET used = ? WHERE key = ?", (today, key))
        return json.loads(stored_row[0])

    def put(self, key: str, value: Any) -> None:
        today = int(time.time()) // DAY
        row = (key, json.dumps(value), today)
        with self._lock, self._base:
            self._base.execute("INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", row)

    def close(self) -> None:
        self._base.close()
