-- A heartbeat of a worker: KEYS[1] the registry; ARGV: address, record, seconds after which the silent are forgotten, most workers.
-- Answers 1, or 0 where there is no room for one more.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  local known = redis.call('HGETALL', KEYS[1])
  local count = #known / 2
  for i = 1, #known, 2 do
    local beat = tonumber(string.match(known[i + 1], '^[^ ]*'))
    if not beat or now - beat > tonumber(ARGV[3]) then
      redis.call('HDEL', KEYS[1], known[i])
      count = count - 1
    end
  end
  if count >= tonumber(ARGV[4]) then
    return 0
  end
end
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.6f ', now) .. ARGV[2])
return 1
