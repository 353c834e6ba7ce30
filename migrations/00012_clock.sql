-- What Postgres's clock gained is known to those who come later, too.

-- +goose Up

-- Each time that a dispatcher saw Postgres's clock set, and by how much: forward, when windows are widened by that while
-- it lies within them; or back (less than 0), by no more than that. Times are Postgres's clock.
CREATE TABLE call_clock_gains (
    id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at timestamptz NOT NULL, -- when it was seen
    by interval    NOT NULL
);

-- +goose Down
DROP TABLE call_clock_gains;
