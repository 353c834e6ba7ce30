-- What limits and queues did, minute by minute, for plots.

-- +goose Up

-- A row for each limit and minute in which something was used of it, waited for it, or kept it closed. There are many: the columns
-- are in an order that needs no padding, and what is mostly nothing is NULL. The index has a minute once, not each row's name.
CREATE TABLE callq.call_limit_history (
    minute     timestamptz NOT NULL, -- when it began
    used       integer     NOT NULL, -- units of the requests that were sent in it; of a limit of concurrency: occupied at its end
    capacity   real        NOT NULL, -- units that a minute has on average; of a limit of concurrency: at once
    waiting    integer,              -- due calls of its queues at the end; NULL: none
    refused    integer,              -- answers that said that a limit was full; NULL: none
    next_unit  integer,              -- the longest that a due call had to wait in it for the next unit, in ms; NULL: none had to, or unknown
    limit_name text        NOT NULL,
    closed     jsonb                 -- for how many seconds, by cause: {"refused": 12}; NULL: it was open
);

CREATE INDEX call_limit_history_minute_idx ON callq.call_limit_history (minute);

-- history.Note, one at a time, sees to it that no minute is noted twice.
ALTER TABLE callq.call_limit_history REPLICA IDENTITY FULL;

-- A row for each queue and minute in which calls were due, started or ended. Waits and runs are in ms; NULL: none.
CREATE TABLE callq.call_queue_history (
    minute   timestamptz NOT NULL,
    due      integer     NOT NULL, -- at the end
    started  integer     NOT NULL, -- attempts
    done     integer     NOT NULL, -- calls
    errors   integer     NOT NULL, -- attempts that failed or were lost
    wait_p50 real,                 -- from when a call could be made until its first attempt started
    wait_p95 real,
    run_p50  real,                 -- from the start to the end of an attempt
    run_p95  real,
    queue    text        NOT NULL
);

CREATE INDEX call_queue_history_minute_idx ON callq.call_queue_history (minute);

ALTER TABLE callq.call_queue_history REPLICA IDENTITY FULL;

-- +goose Down
DROP TABLE callq.call_queue_history, callq.call_limit_history;
