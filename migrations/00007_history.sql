-- What limits and queues did, minute by minute, for plots.

-- +goose Up

-- A row for each limit and minute in which something was used of it, waited for it, or kept it closed.
CREATE TABLE callq.call_limit_history (
    limit_name text        NOT NULL,
    minute     timestamptz NOT NULL, -- when it began
    used       integer     NOT NULL, -- units of the requests that were sent in it; of a limit of concurrency: occupied at its end
    capacity   real        NOT NULL, -- units that a minute has on average; of a limit of concurrency: at once
    waiting    integer     NOT NULL, -- due calls of its queues at the end
    refused    integer     NOT NULL, -- answers that said that a limit was full
    closed     jsonb,                -- for how many seconds, by cause: {"refused": 12}; NULL: it was open
    PRIMARY KEY (limit_name, minute)
);

-- A row for each queue and minute in which calls were due, started or ended. Waits and runs are in ms; NULL: none.
CREATE TABLE callq.call_queue_history (
    queue    text        NOT NULL,
    minute   timestamptz NOT NULL,
    due      integer     NOT NULL, -- at the end
    started  integer     NOT NULL, -- attempts
    done     integer     NOT NULL, -- calls
    errors   integer     NOT NULL, -- attempts that failed or were lost
    wait_p50 real,                 -- from when a call could be made until its first attempt started
    wait_p95 real,
    run_p50  real,                 -- from the start to the end of an attempt
    run_p95  real,
    PRIMARY KEY (queue, minute)
);

-- +goose Down
DROP TABLE callq.call_queue_history, callq.call_limit_history;
