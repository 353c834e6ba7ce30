-- Corrects a draw once its true cost is known.
--   ARGV     the units to take (above 0) or to give back (below 0); the draw's mark
--   returns  now
--
-- What is taken was used already, so it waits for nobody, and later draws wait longer. What is given back counts no more
-- where it was counted, and nowhere else: not at all, where that window is over. What a token bucket then holds is no more
-- than if all that was granted since the draw had been granted at once, for nobody knows when it was.
local by, mark = tonumber(ARGV[1]), tonumber(ARGV[2])
local b = load(1)
if b.unknown then return {-1, 1, b.unknown} end
if by > 0 then
    take(b, by, b.from)
    return {now}
end
if b.fresh then return {now} end
if b.kind == 'token' then
    b.level = math.max(b.level, math.min(b.level - by, b.size - math.max(0, b.edge - mark)))
elseif b.kind == 'fixed' then
    if b.edge == mark then b.level = math.max(0, b.level + by) end
else
    for place, edge, units in entries(b) do
        if edge == mark then
            by = math.max(by, -units)
            redis.call('LSET', b.log, place - 1, string.format('%.0f %.0f', edge, units + by))
            b.level = b.level + by
            break
        end
    end
end
save(b)
return {now}
