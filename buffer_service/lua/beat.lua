-- A heartbeat of a worker: KEYS[1] the registry; ARGV: address, record, seconds after which the silent are forgotten, most workers.
-- Answers 1, or 0 where there is no room for one more.
-- The clock may be set back: nobody was heard of after now, or who is dead by then would be alive until the clock is there again.
local time = redis.call('TIME')
local now = tonumber(time[1]) + tonumber(time[2]) / 1e6
local stamp = string.format('%.6f ', now)

local function beat_of(record) return tonumber(string.match(record, '^[^ ]*')) end

local own = redis.call('HGET', KEYS[1], ARGV[1])
if not own then
  local known = redis.call('HGETALL', KEYS[1])
  local count = #known / 2
  for i = 1, #known, 2 do
    local beat = beat_of(known[i + 1])
    if not beat or now - beat > tonumber(ARGV[3]) then
      redis.call('HDEL', KEYS[1], known[i])
      count = count - 1
    end
  end
  if count >= tonumber(ARGV[4]) then
    return 0
  end
elseif (beat_of(own) or now) > now then
  local known = redis.call('HGETALL', KEYS[1])
  for i = 1, #known, 2 do
    if (beat_of(known[i + 1]) or now) > now then
      redis.call('HSET', KEYS[1], known[i], (string.gsub(known[i + 1], '^[^ ]* ?', stamp, 1)))
    end
  end
end
redis.call('HSET', KEYS[1], ARGV[1], stamp .. ARGV[2])
return 1
