-- The tables of a state (database.py); with other ones VERSION there is another. A line ends with a semicolon where its
-- statement ends.

CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- The model is the base and, in order of their numbers, the changes made to it since.
CREATE TABLE base (
    only_one INTEGER PRIMARY KEY CHECK (only_one = 1),
    weights TEXT NOT NULL, moments TEXT NOT NULL, dataset TEXT NOT NULL, deleted TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    -- Of the model when it was last trained: its training interactions and ‖θ‖². Of the requests that were published
    -- since: their training interactions, and the drift of their changes.
    trained_on INTEGER NOT NULL, norm REAL NOT NULL, gone INTEGER NOT NULL, drift REAL NOT NULL
);
CREATE TABLE changes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    file TEXT NOT NULL, fingerprint TEXT NOT NULL, drift REAL NOT NULL
);

CREATE TABLE requests (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    digest TEXT NOT NULL,  -- keyed
    status TEXT NOT NULL CHECK (status IN ('pending', 'done', 'failed', 'rolled back', 'published')),
    submitted TEXT NOT NULL, due TEXT, finished TEXT,
    -- In steps: how much it asks for, and the states of its lines.
    interactions_up_to INTEGER NOT NULL, users_up_to INTEGER NOT NULL,
    queued_up_to INTEGER NOT NULL, unknown_up_to INTEGER NOT NULL, deleted_before_up_to INTEGER NOT NULL,
    -- Exactly, with the interactions below; NULL once it is published or undone.
    interactions INTEGER, held_out INTEGER, users INTEGER, items INTEGER,
    why TEXT NOT NULL DEFAULT '',
    change INTEGER REFERENCES changes (number),
    seal TEXT NOT NULL DEFAULT '',  -- of the other columns; empty until the entry about a change is made
    -- Pairs of numbers (`packed`), empty once it is published or undone: its interactions, each by part (0 training,
    -- 1 validation, 2 test) and number in the base, and the pairs that are never recommended, each by the ids of its
    -- user and item in the base, 0 for all users or items.
    asked BLOB NOT NULL, suppressed BLOB NOT NULL
);
CREATE INDEX requests_by_digest ON requests (digest);
CREATE TRIGGER a_change_breaks_the_seal AFTER UPDATE ON requests WHEN new.seal = old.seal
    BEGIN UPDATE requests SET seal = '' WHERE number = new.number; END;

CREATE TABLE ledger (number INTEGER PRIMARY KEY, entry TEXT NOT NULL, link TEXT NOT NULL);
CREATE TRIGGER ledger_is_kept BEFORE UPDATE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
CREATE TRIGGER ledger_is_whole BEFORE DELETE ON ledger BEGIN SELECT RAISE(ABORT, 'the ledger is append-only'); END;
