package ledger

// DataSQL is the text of call_data of a call q, as a handler gets it; NULL: it is longer than most, and not for a worker.
//
// A number of 10 bytes may print 131,072 digits, and compressed data hides its length: Postgres might take seconds to
// print it, or fail. So where few bytes could be much text, the size of the value, which is at most 4 times the text, and the
// digits of large numbers come first. Text that is too long goes no further: kept for a whole batch, it would fill the disk.
const DataSQL = `(SELECT CASE WHEN octet_length(text) <= most THEN text END FROM (SELECT CASE
        WHEN (pg_column_size(q.call_data) > 4096 OR pg_column_compression(q.call_data) IS NOT NULL)
            AND (pg_column_size(q.call_data #> '{}') > 5 * most + 100 OR ` + digitsSQL + ` > most) THEN NULL
        ELSE coalesce(q.call_data, '{}')::text END AS text OFFSET 0) d)`

// MostSQL is a row with most: the bytes that calls.max_data allows.
const MostSQL = `(SELECT coalesce(max(position), 262144) AS most FROM callq.call_meta WHERE name = 'max_data') m`

// digitsSQL is a lower bound of what numbers print as, short by a tenth at most. It costs about as much as skipping over them.
const digitsSQL = `(SELECT coalesce(sum(scale(n::numeric) + CASE
                WHEN abs(n::numeric) < 1e100 THEN 0 WHEN abs(n::numeric) < 1e1000 THEN 100
                WHEN abs(n::numeric) < 1e10000 THEN 1000 WHEN abs(n::numeric) < 1e100000 THEN 10000 ELSE 100000 END), 0)
            FROM jsonb_path_query(q.call_data, 'strict $.** ? (@.type() == "number")') AS n)`
