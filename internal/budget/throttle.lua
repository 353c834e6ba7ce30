-- Halves the multiplier of the rate, after which it comes back to 1 within a minute at most. Of many who ask within a
-- second one is heard: they speak of the same requests. ARGV[1] and ARGV[2] are of no use.
--   returns  now; the multiplier in thousandths
local b = load(1)
if b.unknown then return {-1, 1, b.unknown} end
if b.slow >= 1 or b.now - b.slowed >= apart then
    b.multiplier = math.max(least, b.multiplier / 2)
    b.slow, b.slowed, b.rate = b.multiplier, b.now, b.units * b.multiplier
    if b.fresh then redis.call('DEL', b.log) end
    save(b)
end
return {now, math.floor(b.multiplier * 1000)}
