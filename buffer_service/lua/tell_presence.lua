-- A process of the buffer tells of itself. KEYS: told, heard, history. ARGV: process, document, seconds after which the silent are gone, most processes.
-- Answers the newest entry of the history, '' where there is none; nothing where there is no room for one process more.
-- The clock may be set back: nobody was heard of after now. Who was is forgotten with the gone, and tells of itself again.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6

local function forget(from, to)
  for _, process in ipairs(redis.call('ZRANGE', KEYS[2], from, to, 'BYSCORE')) do
    redis.call('HDEL', KEYS[1], process)
    redis.call('ZREM', KEYS[2], process)
  end
end

forget('-inf', string.format('(%.6f', now - tonumber(ARGV[3])))
forget(string.format('(%.6f', now), '+inf')
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) and redis.call('ZCARD', KEYS[2]) >= tonumber(ARGV[4]) then
  return false
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
redis.call('ZADD', KEYS[2], string.format('%.6f', now), ARGV[1])
local newest = redis.call('XREVRANGE', KEYS[3], '+', '-', 'COUNT', 1)
return newest[1] and newest[1][1] or ''
